"""The languages of a model that translates between several, and the tokens that choose them."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from keras_transformer.presets.options import LANGUAGE_ORDERS, Imported

Language: TypeAlias = str | Sequence[str] | None  # the code of one for all texts, or one for each

SIDES = ("source", "target")
SHOWN = 5  # codes in an error


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages of a model.

    Attributes:
        tokens: The token of each language by its code, such as `{"de": "__de__"}`.
        order: One of `LANGUAGE_ORDERS`: where the tokens are.
        source, target: The codes of the two that are translated between, if they are fixed.

    Raises:
        ValueError: If one of the two is unknown, or of a model that does not choose it.
    """

    tokens: dict[str, str]
    order: str
    source: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        for side in SIDES:
            if code := getattr(self, side):
                self._check(side, code)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides whose language is chosen: both, or the target alone."""
        return SIDES[1:] if self.order == LANGUAGE_ORDERS[0] else SIDES

    @property
    def is_forced(self) -> bool:
        """Whether the target begins with the token of its language."""
        return len(self.sides) == 2

    @property
    def beginnings(self) -> tuple[list[str], list[str]]:
        """The codes of the tokens that a source and a target begin with in training."""
        if not self.is_forced:
            return [self.target] if self.target else [], []
        return [str(self.source)], [str(self.target)]

    def pairs(self, source: Language, target: Language, count: int) -> list[tuple[str, ...]]:
        """Returns the codes of the sides of each of `count` texts; None stands for the fixed ones.

        Raises:
            ValueError: If one is missing, unknown, or not one for each text.
        """
        columns = []
        for side, codes in zip(SIDES, (source, target), strict=True):
            if side not in self.sides:
                if codes is not None:
                    self._check(side, codes)
                continue
            codes = getattr(self, side) if codes is None else codes
            if codes is None:
                raise ValueError(
                    f"The model has {len(self.tokens):,} languages: give the {side}_language, such "
                    f"as {self._some()}."
                )
            codes = [codes] * count if isinstance(codes, str) else list(codes)
            if len(codes) != count:
                raise ValueError(
                    f"Expected one {side}_language, or one for each of {count} texts, received "
                    f"{len(codes)}."
                )
            for code in dict.fromkeys(codes):
                self._check(side, code)
            columns.append(codes)
        return list(zip(*columns, strict=True))

    def _check(self, side, code):
        if side not in self.sides:
            raise ValueError(
                f"The model chooses the target's language only: leave out source_language={code!r}."
            )
        if code not in self.tokens:
            near = difflib.get_close_matches(str(code), self.tokens, SHOWN, 0.4)
            raise ValueError(
                f"The model has no {side}_language {code!r:.40}: choose from its "
                f"{len(self.tokens):,}, such as {', '.join(near) or self._some()}."
            )

    def _some(self):
        return ", ".join(list(self.tokens)[:SHOWN])


def fix_languages(
    languages: Languages | None, source: str | None, target: str | None
) -> Languages | None:
    """Returns the languages with others to translate between, where these are given."""
    if languages is None:
        check_no_languages(source, target)
        return None
    source, target = source or languages.source, target or languages.target
    return dataclasses.replace(languages, source=source, target=target)


def find_exported_languages(
    card: Mapping[str, Any], source: str | None = None, target: str | None = None
) -> Languages | None:
    """Returns the languages of an export by its card, between which each request chooses.

    Raises:
        ValueError: If one is given that the export fixes, or has not.
    """
    if (part := card.get("languages")) is None:
        check_no_languages(source, target)
        return None
    fixed = {side: part.get(f"{side}_language") for side in SIDES}
    for side, code in zip(SIDES, (source, target), strict=True):
        if code and fixed[side] and code != fixed[side]:
            raise ValueError(
                f"The export has the {side}_language {fixed[side]!r}, received {code!r:.40}: leave "
                "it out, or give the run directory."
            )
    order = LANGUAGE_ORDERS["source_language" in part]
    codes = (source or fixed["source"], target or fixed["target"])
    return Languages({code: code for code in part["codes"]}, order, *codes)


def find_languages(
    imported: Imported | None, source: str | None = None, target: str | None = None
) -> Languages | None:
    """Returns the languages of an imported model; None if it has none.

    `source` and `target` are the codes of those that it translates between.
    """
    tags = imported.language_tags if imported else ()
    if not imported or not tags:
        check_no_languages(source, target)
        return None
    return Languages(
        {tag.strip("_<>"): tag for tag in tags}, imported.language_order, source, target
    )


def check_no_languages(source: Language, target: Language) -> None:
    """Raises if a language is given to a model that has none to choose from."""
    if given := source or target:
        raise ValueError(
            f"The model has no languages to choose from, received {given!r:.40}: leave it out."
        )
