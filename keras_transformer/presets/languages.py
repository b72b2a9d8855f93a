"""The languages of a model that translates between several, and the tokens that choose them."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from keras_transformer.presets.options import SOURCE_TEXT, TARGET_TEXT, TEXT_SOURCE, Imported

Language: TypeAlias = str | Sequence[str] | None  # the code of one for all texts, or one for each

SIDES = ("source", "target")
SHOWN = 5  # codes in an error


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages of a model or an export; by default of one that has none to choose from.

    Attributes:
        tokens: The token of each language by its code, such as `{"de": "__de__"}`.
        order: One of `LANGUAGE_ORDERS`: where the tokens are.
        source, target: The codes of the two that are translated between by default.
        fixed: The sides whose language an export has fixed.
    """

    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: str = TARGET_TEXT
    source: str | None = None
    target: str | None = None
    fixed: tuple[str, ...] = ()

    @classmethod
    def of_import(cls, imported: Imported | None) -> "Languages":
        """Returns the languages of an imported model."""
        if imported is None:
            return cls()
        tokens = {tag.strip("_<>"): tag for tag in imported.language_tags}
        return cls(tokens, imported.language_order)

    @classmethod
    def of_export(cls, card: Mapping[str, Any]) -> "Languages":
        """Returns the languages of an export by its card; see `describe`."""
        part = card.get("languages", {})
        order = SOURCE_TEXT if "source_language" in part else TARGET_TEXT
        languages = cls({code: code for code in part.get("codes", ())}, order)
        return languages.fix(*(part.get(f"{side}_language") for side in SIDES))

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides whose language is chosen: both, the target alone, or none."""
        return () if not self.tokens else SIDES if self.num_forced else SIDES[1:]

    @property
    def num_forced(self) -> int:
        """The number of tokens that targets begin with: 1, that of their language, or 0."""
        return int(self.order != TARGET_TEXT)

    @property
    def examples(self) -> str:
        """Some codes, for messages."""
        return ", ".join([*self.tokens][:SHOWN])

    @property
    def inputs(self) -> list[str]:
        """The names of the languages that are not fixed: inputs of an export."""
        return [f"{side}_language" for side in self.sides if side not in self.fixed]

    def choose(self, source: str | None = None, target: str | None = None) -> "Languages":
        """Returns the same languages with other defaults, where they are given.

        Raises:
            ValueError: If one is unknown, or of a side whose language is not chosen.
        """
        for side, code in zip(SIDES, (source, target), strict=True):
            if code is not None:
                self._check(side, code)
        source, target = source or self.source, target or self.target
        return dataclasses.replace(self, source=source, target=target)

    def fix(self, source: str | None = None, target: str | None = None) -> "Languages":
        """Returns those of an export, which fixes the languages that are given or default."""
        chosen = self.choose(source, target)
        fixed = tuple(side for side in SIDES if getattr(chosen, side) is not None)
        return dataclasses.replace(chosen, fixed=fixed)

    def columns(
        self, count: int, source_language: Language = None, target_language: Language = None
    ) -> dict[str, list[str]]:
        """Returns the codes for each of `inputs`, of each of `count` texts.

        Raises:
            ValueError: If a language is missing, unknown, fixed, or not one for each text.
        """
        columns = {}
        for side, given in zip(SIDES, (source_language, target_language), strict=True):
            name, codes = f"{side}_language", getattr(self, side) if given is None else given
            if codes is not None:
                codes = [codes] * count if isinstance(codes, str) else list(codes)
                if len(codes) != count:
                    raise ValueError(
                        f"Expected one {name}, or one for each of {count} texts, received "
                        f"{len(codes)}."
                    )
                for code in dict.fromkeys(codes):
                    self._check(side, code)
                columns[name] = codes
            elif side in self.sides:
                raise ValueError(
                    f"The model has {len(self.tokens):,} languages: give the {name}, such as "
                    f"{self.examples}."
                )
        return {name: columns[name] for name in self.inputs}

    def beginnings(self) -> tuple[list[str], list[str]]:
        """Returns the tokens that all sources and all targets of a training begin with.

        Raises:
            ValueError: If a language is missing, or its token does not come first.
        """
        if self.order == TEXT_SOURCE:
            raise ValueError(
                "Models whose sources end with the token of their language cannot be trained: use "
                "one whose tokenizer has legacy_behaviour false."
            )
        if not self.num_forced:  # sources may have their tokens already
            return [self.tokens[self.target]] if self.target else [], []
        source, target = ([self.tokens[code]] for (code,) in self.columns(1).values())
        return source, target

    def read_tags(self, texts: Sequence[bytes], is_chosen: bool) -> bool:
        """Whether all texts begin with tokens that choose their languages.

        Raises:
            ValueError: If one does although the language is chosen, whose token comes before it.
        """
        if self.num_forced:  # codes in texts are text
            return False
        tags = tuple(token.encode() for token in self.tokens.values())
        tagged = [text for text in texts if text.lstrip().startswith(tags)]
        if is_chosen and tagged:
            source = tagged[0].decode(errors="replace")
            raise ValueError(
                f"A source begins with the token of a language, {source!r:.40}: remove it, and "
                "give target_language."
            )
        return not is_chosen and (not tags or len(tagged) == sum(bool(x.strip()) for x in texts))

    def describe(self) -> dict[str, Any]:
        """Makes a part of an export's card: all codes, the inputs, and which are fixed."""
        fixed = {f"{side}_language": getattr(self, side) for side in self.sides}
        return {"codes": [*self.tokens], "inputs": self.inputs, **fixed}

    def _check(self, side, code):
        """Raises if a language cannot be chosen."""
        if not self.tokens:
            raise ValueError(
                f"The model has no languages to choose from, received {code!r:.40}: leave it out."
            )
        if side not in self.sides:
            raise ValueError(
                f"The model chooses the target's language only: leave out source_language={code!r}."
            )
        if side in self.fixed and code != getattr(self, side):
            raise ValueError(
                f"The export has the {side}_language {getattr(self, side)!r}, received "
                f"{code!r:.40}: leave it out, or give the run directory."
            )
        if code not in self.tokens:
            near = difflib.get_close_matches(str(code), self.tokens, SHOWN, 0.4)
            raise ValueError(
                f"The model has no {side}_language {code!r:.40}: choose from its "
                f"{len(self.tokens):,}, such as {', '.join(near) or self.examples}."
            )
