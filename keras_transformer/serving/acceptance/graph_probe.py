"""Looks at the graph of an exported version, in a process of its own: what it takes is limited.

usage: python -m keras_transformer.serving.acceptance.graph_probe [--allow=OP,OP] saved_model.pb

Prints, as `inspection.probing` does, {"signatures": …, "problems": [a sentence each],
"ops": [names of those that are not allowed]}.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer.inspection import probing
from keras_transformer.serving.acceptance.graph import unknown_ops
from keras_transformer.serving.acceptance.saved_graph import read_meta_graphs
from keras_transformer.serving.acceptance.server_process import read_signatures
from keras_transformer.serving.acceptance.structure import check_structure

MOST_PROBLEMS = 1000


def main(arguments: Sequence[str]) -> None:
    """Looks at the version that holds a file."""
    allow = [x for one in arguments if one.startswith("--allow=") for x in one[8:].split(",")]

    def look(path: str) -> dict[str, Any]:
        directory = os.path.dirname(path)
        problems = check_structure(directory, allow)[:MOST_PROBLEMS]
        signatures = read_signatures(directory)
        answer: dict[str, Any] = {"signatures": signatures, "problems": problems}
        if problems and signatures:
            graphs = read_meta_graphs(directory)
            answer["ops"] = [op for graph in graphs for op in unknown_ops(graph, allow)]
        return answer

    probing.main([one for one in arguments if not one.startswith("--")], look)


if __name__ == "__main__":
    main(sys.argv[1:])
