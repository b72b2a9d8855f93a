"""Translates and scores with an exported version, without importing TensorFlow."""

import dataclasses
import itertools
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keras_transformer.kernels import available_cores
from keras_transformer.presets import SearchConfig, resolve_search
from keras_transformer.presets.languages import Language, Languages
from keras_transformer.serving.server_process import ServerProcess, one_line
from keras_transformer.serving.structure import inspect_version
from keras_transformer.serving.versions import DEFAULT, find_exported_search, read_card, version_dir
from keras_transformer.translation.sentences import (
    Hypothesis,
    as_bytes,
    check_count,
    check_n_best,
    in_batches,
    sample_seeds,
)
from keras_transformer.utils import Path, Texts

SAMPLING = ("temperature", "top_k", "top_p")  # inputs of the signature `sample`
OPTIMIZE_THRESHOLD = 256  # texts; for fewer, rewriting the graph takes longer than it saves


class ExportedTranslator:
    """Asks a version's signatures what a `Translator` computes in memory.

    A separate process answers, as a server would, for as long as this object lives. `path` is a
    version directory, or the one above, whose highest version is taken; for `allow_ops`, see
    `check_structure`.
    """

    def __init__(self, path: Path, allow_ops: Collection[str] = ()) -> None:
        self.directory = version_dir(os.fspath(path))
        self._threads = available_cores()
        self._texts = 0  # so far
        self._run: Any = None
        self._close: Callable[[], object] = lambda: None
        self.signatures = inspect_version(self.directory, allow_ops)
        self.card = read_card(self.directory)
        self.languages = Languages.of_export(self.card)

    def check_search(self, search: SearchConfig, prefixes: bool = False) -> str:
        """Returns the name of the signature for a search; raises an error if there is none."""
        name = "sample" if search.sample else DEFAULT if search.beam_size == 1 else "beam"
        self._check_signature(name)
        if prefixes:
            self._refuse("takes no prefixes: leave out --prefix")
        own = find_exported_search(self.directory, search.beam_size)
        own = dataclasses.replace(own, seed=search.seed)  # without sampling, it has no effect
        if name == "sample":
            chosen = {key: getattr(search, key) for key in SAMPLING}
            own = dataclasses.replace(own, sample=True, **chosen)
        for field in dataclasses.fields(search):
            fixed, received = (getattr(config, field.name) for config in (own, search))
            if fixed != received:
                self._refuse(
                    f"fixes {field.name} of its signature {name} at {str(fixed).lower()}, received "
                    f"{str(received).lower()}: use that value"
                )
        return name

    def translate(self, texts: Texts, **options: Any) -> list[str]:
        """Does what `Translator.translate` does, if the export has a signature for the search."""
        return [found[0].text for found in self.translate_n_best(texts, n_best=1, **options)]

    def translate_n_best(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig | None = None,
        prefixes: None = None,
        n_best: int | None = None,
        first: int = 0,
        source_language: Language = None,
        target_language: Language = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Does what `Translator.translate_n_best` does, likewise."""
        own = find_exported_search(self.directory, options.get("beam_size", 1))
        search = resolve_search(search, options, own)
        n_best = check_n_best(n_best, search)
        name = self.check_search(search, prefixes is not None)
        draws = n_best if search.sample else 1
        texts = as_bytes(texts)
        columns: dict[str, list[Any]] = {"text": texts}
        columns |= self.languages.columns(len(texts), source_language, target_language)
        inputs = {key: [x for x in rows for _ in range(draws)] for key, rows in columns.items()}
        if search.sample:
            inputs["seed"] = sample_seeds(search, first, len(texts), draws)
            inputs |= {key: [getattr(search, key)] * len(inputs["text"]) for key in SAMPLING}
        found = []
        for answer in self._ask(name, inputs, batch_size // search.beam_size):
            if name != "beam":
                answer = {key: [answer[key]] for key in ("text", "log_prob")}
            scores = answer.get("score", answer["log_prob"])
            found.append(list(map(Hypothesis, answer["text"], answer["log_prob"], scores)))
        return [
            list(itertools.chain(*found[i : i + draws]))[:n_best]
            for i in range(0, len(found), draws)
        ]

    def score(
        self, sources: Texts, targets: Texts, batch_size: int = 64, **languages: Language
    ) -> list[tuple[float, int]]:
        """Does what `Translator.score` does, except that long targets are truncated too."""
        self._check_signature("score")
        inputs: dict[str, list[Any]] = {"source": as_bytes(sources), "target": as_bytes(targets)}
        check_count("target", inputs["target"], len(inputs["source"]))
        inputs |= self.languages.columns(len(inputs["source"]), **languages)
        answers = self._ask("score", inputs, batch_size)
        return [(answer["log_prob"], answer["tokens"]) for answer in answers]

    def _refuse(self, what):
        raise ValueError(
            f"{self.directory} is a SavedModel, which {what}, or give the run directory."
        )

    def _check_signature(self, name):
        if name not in self.signatures:
            raise ValueError(
                f"{self.directory} has no signature {name}: export it with --signatures {name}."
            )

    def _ask(
        self, name: str, inputs: Mapping[str, Sequence[Any]], batch_size: int
    ) -> list[dict[str, Any]]:
        """One dict of outputs for each row of all inputs, in their order."""
        texts = next(iter(inputs.values()))

        def run(batches):
            requests = [
                ({key: [rows[i] for i in batch] for key, rows in inputs.items()}, name)
                for batch in batches
            ]
            for reply in self._predict_all(requests, len(texts)) if requests else ():
                rows = zip(*reply.values(), strict=True)
                yield [dict(zip(reply, row, strict=True)) for row in rows]

        return in_batches(run, [len(text) for text in texts], batch_size, self._threads)

    def _predict_all(self, requests, count):
        """Runs batches, each (inputs, name of the signature), with `count` texts together.

        A process with an optimized graph replaces the first one once there have been more than
        `OPTIMIZE_THRESHOLD` texts.
        """
        before, self._texts = self._texts, self._texts + count
        try:
            if self._run is None or before <= OPTIMIZE_THRESHOLD < self._texts:
                self._close()
                self._run = None  # if the new one cannot be loaded
                optimize = self._texts > OPTIMIZE_THRESHOLD
                server = ServerProcess(self.directory, threads=self._threads, optimize=optimize)
                self._close = weakref.finalize(self, server.close)
                self._run = server.predict_all
            replies = self._run(requests)
        except (ValueError, RuntimeError) as error:  # it cannot be loaded, or has died
            self._close()
            self._run = None
            raise ValueError(f"{one_line(error)}.") from error
        for reply in replies:
            if "error" in reply:
                reason = one_line(reply["error"])
                raise ValueError(f"{self.directory} answers with an error: {reason}.")
        return replies
