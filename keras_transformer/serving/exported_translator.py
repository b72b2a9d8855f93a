"""An exported version asked for whole files, without importing TensorFlow, which takes seconds."""

import dataclasses
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.serving.acceptance.opening import inspect_version
from keras_transformer.serving.lasting_server import LastingServer
from keras_transformer.serving.versions import (
    CARD,
    DEFAULT,
    read_card,
    version_dir,
)
from keras_transformer.translation.attention_maps import AttentionMaps
from keras_transformer.translation.hypotheses import (
    Hypothesis,
    check_n_best,
    draw_seed,
)
from keras_transformer.translation.sentence_batches import (
    as_bytes,
    check_count,
    in_order,
    sorted_batches,
)
from keras_transformer.typing import Path, Texts

DRAWN = ("temperature", "top_k", "top_p")  # what a request to `sample` may choose


class ExportedTranslator:
    """What a version's signatures answer to lists of texts, as a `Translator` does in memory.

    On Linux a process of its own answers, as a server would, for as long as this object lives;
    elsewhere TensorFlow does.

    Args:
        path: A version directory; or the one above, of which the highest version is taken.
        allow_ops: Names of ops that its graph may hold besides those of this package's exports,
            such as those of a tokenizer of your own.

    Raises:
        ValueError: If there is no SavedModel, it is damaged, or made to do more than to translate.
    """

    def __init__(self, path: Path, allow_ops: Collection[str] = ()) -> None:
        self.directory = version_dir(os.fspath(path))
        self._server = LastingServer(self.directory)
        self.signatures = inspect_version(self.directory, allow_ops)

    def check_search(self, search: SearchConfig, prefixes: bool = False) -> str:
        """Refuses what the export does not do.

        Args:
            search: `SearchConfig`.
            prefixes: Whether there are any, which no signature takes.

        Returns:
            Name of the signature that searches so.

        Raises:
            ValueError: If there is none.
        """
        name = "sample" if search.sample else DEFAULT if search.beam_size == 1 else "beam"
        self._check_signature(name)
        if prefixes:
            self._refuse("takes no prefixes: leave out --prefix")
        own = GREEDY
        if name == "sample":
            chosen = {key: getattr(search, key) for key in ("seed", *DRAWN)}
            own = SearchConfig(sample=True, **chosen)
        elif name == "beam":
            own = self._beam()
        for field in dataclasses.fields(search):
            fixed, received = (getattr(config, field.name) for config in (own, search))
            if fixed != received:
                own_value = "" if fixed is None else f" at {fixed}"
                self._refuse(
                    f"fixes {field.name} of its signature {name}{own_value}, received {received}: "
                    "take that"
                )
        return name

    def translate(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig = GREEDY,
        prefixes: None = None,
        first: int = 0,
    ) -> list[str]:
        """Translates a list of sentences.

        Args:
            texts: Strings or byte strings.
            batch_size: Number of texts per batch; a beam search of N beams takes an N-th of it.
            search: `SearchConfig`, one that the export has a signature for.
            prefixes: None: there is no signature that takes them.
            first: As `Translator.translate` has it.

        Returns:
            List of strings, in the same order.

        Raises:
            ValueError: If the version cannot be loaded, or does not search so.
        """
        n_best = self._search(texts, batch_size, search, prefixes, n_best=1, first=first)
        return [hypotheses[0].text for hypotheses in n_best]

    def translate_n_best(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig = GREEDY,
        prefixes: None = None,
        n_best: int | None = None,
        first: int = 0,
    ) -> list[list[Hypothesis]]:
        """Translates a list of sentences, each in several ways.

        Args:
            texts, batch_size, search, prefixes, first: As `translate` has them.
            n_best: As `Translator.translate_n_best` has it.

        Returns:
            As `Translator.translate_n_best` does.

        Raises:
            ValueError: As `translate` does, or if the beam is not so wide.
        """
        if self.check_search(search) == "beam" and "score" not in self.signatures["beam"][1]:
            raise ValueError(
                f"The signature beam of {self.directory} tells no scores: export the run anew."
            )
        return self._search(texts, batch_size, search, prefixes, n_best, first)

    def _search(self, texts, batch_size, search, prefixes, n_best, first):
        """`Hypothesis`es for each text; where the signature tells no score, by their log_prob."""
        n_best = check_n_best(n_best, search)
        name = self.check_search(search, prefixes is not None)
        draws = n_best if search.sample else 1
        rows = [row for row in as_bytes(texts) for _ in range(draws)]
        inputs: dict[str, list[Any]] = {"text": rows}
        if search.sample:
            places = [divmod(i, draws) for i in range(len(rows))]
            inputs["seed"] = [draw_seed(search, first + number, draw) for number, draw in places]
            inputs |= {key: [getattr(search, key)] * len(rows) for key in DRAWN}
        found = []
        for answer in self._ask(name, inputs, max(1, batch_size // search.beam_size)):
            if name != "beam":
                answer = {key: [answer[key]] for key in ("text", "log_prob")}
            columns = answer["text"], answer["log_prob"], answer.get("score", answer["log_prob"])
            found.append(list(itertools.starmap(Hypothesis, zip(*columns, strict=True))))
        return [
            list(itertools.chain(*found[i : i + draws]))[:n_best]
            for i in range(0, len(found), draws)
        ]

    def score(
        self, sources: Texts, targets: Texts, batch_size: int = 64
    ) -> list[tuple[float, int]]:
        """Computes how probable given translations are.

        Args:
            sources, targets, batch_size: As `Translator.score` has them, but that targets are cut
                at the model's `max_length` too.

        Returns:
            For each pair (log_prob, number of tokens).

        Raises:
            ValueError: If there are not as many targets as sources, the version cannot be loaded,
                or has no signature `score`.
        """
        self._check_signature("score")
        inputs = {"source": as_bytes(sources), "target": as_bytes(targets)}
        check_count("target", inputs["target"], len(inputs["source"]))
        answers = self._ask("score", inputs, batch_size)
        return [(answer["log_prob"], answer["tokens"]) for answer in answers]

    def align(
        self,
        sources: Texts,
        targets: None = None,
        layers: None = None,
        heads: None = None,
        batch_size: int = 64,
    ) -> list[tuple[list[str], list[str], list[int]]]:
        """Finds which source token each token of the export's own translations attends to most.

        Args:
            sources, batch_size: As `Translator.align` has them.
            targets, layers, heads: None: the signature `attention` writes the translations itself,
                and averages the heads of the layer that `Translator.align` takes by default.

        Returns:
            For each text (source pieces, target pieces, positions), as `Translator.align`.

        Raises:
            ValueError: If the version cannot be loaded, or has no signature `attention`.
        """
        if targets is not None:
            self._refuse("aligns its own translations, not given ones: leave out --target")
        if layers or heads:
            self._refuse("fixes layers and heads: leave out --layers and --heads")
        return [_most_attended(maps) for maps in self.attention(sources, batch_size)]

    def attention(self, sources: Texts, batch_size: int = 64) -> list[AttentionMaps]:
        """What the tokens of the export's own translations attend to.

        Args:
            sources, batch_size: As `align` has them.

        Returns:
            `AttentionMaps` for each text, with the one map that the signature answers.

        Raises:
            ValueError: If the version cannot be loaded, or has no signature `attention`.
        """
        self._check_signature("attention")
        answers = self._ask("attention", {"text": as_bytes(sources)}, batch_size)
        return [_cut(**answer) for answer in answers]

    def _refuse(self, what):
        raise ValueError(
            f"{self.directory} is a SavedModel, which {what}, or give the run directory it was "
            "exported from."
        )

    def _check_signature(self, name):
        if name not in self.signatures:
            raise ValueError(
                f"{self.directory} has no signature {name}: export the run anew with {name} among "
                "--signatures, or give the run directory."
            )

    def _beam(self):
        """What the signature `beam` does: written into the card, for the graph does not say."""
        try:
            options = read_card(self.directory)["signatures"]["beam"]
            return SearchConfig(options["beam_size"], options["length_penalty"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self.directory} has no {CARD} that says how its signature beam searches: copy "
                "it from the export, or leave out --beam-size."
            ) from None

    def _ask(
        self, name: str, inputs: Mapping[str, Sequence[Any]], batch_size: int
    ) -> list[dict[str, Any]]:
        """One dict of outputs for each row of all inputs, in their order."""
        texts = next(iter(inputs.values()))
        batches = sorted_batches([len(text) for text in texts], batch_size, self._server.threads)
        requests = [
            ({key: [rows[i] for i in batch] for key, rows in inputs.items()}, name)
            for batch in batches
        ]
        replies = self._server.predict_all(requests, len(texts))
        rows = (zip(*reply.values(), strict=True) for reply in replies)
        names: Collection[str] = replies[0].keys() if replies else ()
        return [dict(zip(names, row, strict=True)) for row in in_order(batches, map(list, rows))]


def _cut(text, source_tokens, target_tokens, attention):
    """One row without its padding."""
    source, target = ([x for x in tokens if x] for tokens in (source_tokens, target_tokens))
    table = np.array(attention, np.float32)[: len(target), : len(source)]
    return AttentionMaps(source, target, {"cross": table[np.newaxis, np.newaxis]})


def _most_attended(maps):
    """Pieces without END, and positions, as `Translator.align` has them."""
    source, target, scores = maps
    end = source[-1:]  # a source is always closed by END, a target is unless it was cut
    source = source[:-1]
    target = target[:-1] if target[-1:] == end else target
    if not source:
        return source, target, []
    table = scores["cross"][0, 0, : len(target), : len(source)]
    return source, target, np.argmax(table, axis=1).tolist()
