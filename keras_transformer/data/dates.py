"""The built-in task: translates written dates in many languages to ISO 8601.

`samedi 9 mai 1998` becomes `1998-05-09`. The strings come from CLDR through Babel, so the corpus
needs no download, and a translation is either right or wrong. Babel writes the Gregorian calendar
and the digits 0-9 in every language.
"""

import datetime
import itertools
import random
import re
import sys
from collections.abc import Iterable
from typing import Literal

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, get_date_format

from keras_transformer.data.pairs import Corpus, Pair

# CLDR's lengths of a date. "short" is omitted: its two-digit years are ambiguous.
STYLES: tuple[Literal["medium", "long", "full"], ...] = ("medium", "long", "full")
FIRST_YEAR, LAST_YEAR = 1900, 2099

# Thirty languages in fourteen scripts. No month name of one language means a different month in
# another. That excludes Croatian: its "listopada" is October, in Polish it is November.
LANGUAGES = (
    *("en", "de", "fr", "es", "it", "pt", "nl", "sv", "fi", "pl", "cs", "hu", "tr", "vi"),
    *("ru", "uk", "el", "ar", "fa", "he", "hi", "bn", "ta", "th", "hy", "ka", "am"),
    *("ko", "ja", "zh"),
)

# Further locales, without territories, to add to LANGUAGES, one or all of them: they have their own
# month names, and no month name or string of one has a different meaning in another. The list has
# only one of several locales that print all dates alike, and one of two that contradict each other.
MORE_LANGUAGES = tuple(
    """
    aa ab af agq ak an as asa ast az az_Cyrl bal bal_Latn be bem bew bg blo bm bo br brx bs
    bs_Cyrl byn ca ccp ceb cgg chr co cv cy da dje doi dsb dyo dz ebu eo et eu ewo fil fo frr
    fur fy ga gd gl gsw gu guz gv ha haw hi_Latn hsb ia id ie is jmc jv kab kam kde kea kgp khq
    kk kk_Arab kl kn kok_Latn ks ks_Deva ksb ksf ksh ku kw kxv kxv_Deva kxv_Orya ky la lag lb
    lg lij lld ln lo lt luo luy lv mai mas mer mi mk ml mn mni mr ms ms_Arab mt mua naq nb nds
    nmg nn oc om os osa pa pap pcm prg qu rif rm ro rof sa sah saq sat sbp sc scn sd_Deva seh
    ses shi shi_Latn sk sl smn so sq sr sr_Latn ssy su sw syr szl te tg ti tig tk to tpi tt twq
    uz uz_Arab uz_Cyrl vai vec wae wal wo xh xnr xog yav yrl yue zgh zu
    """.split()
)


def dates(
    languages: Iterable[str] = LANGUAGES,
    train_size: int = 120_000,
    valid_size: int = 1_500,
    test_size: int = 3_000,
    seed: int = 1,
) -> Corpus:
    """Samples pairs of a written date and its ISO 8601 form.

    The split is by date, not by string, because many languages print the same string for a date:
    each date is in only one of training, validation and test set. Since every string stands for
    one date, which is checked, no validation or test string occurs in training. The validation and
    test sets use each of their dates once, with alternating languages; by default they have 50 and
    100 pairs per language, so that one error in the test is one per cent of its language. The
    training set has each combination of date, language and style at most once.

    The same arguments give the same corpus in every process; another version of Babel may have
    another version of CLDR with different strings.

    Args:
        languages: Babel's locale identifiers such as `"fr"` or `"pt_BR"`, without duplicates;
            `LANGUAGES + MORE_LANGUAGES` is possible.
        train_size, valid_size, test_size: Number of pairs of each set.
        seed: Seed of the sampling.

    Returns:
        A `Corpus`. The group of a pair is its language.

    Raises:
        ValueError: If a language is unknown, is repeated or has no month names of its own; if
            two languages write different dates alike; or if a size is out of range.

    Example:

    >>> corpus = dates(languages=["fr", "ja"], train_size=100, valid_size=10, test_size=10)
    >>> len(corpus.train)
    100
    """
    locales = parse_locales(languages)
    first, last = (datetime.date(year, 1, 1) for year in (FIRST_YEAR, LAST_YEAR + 1))
    days = [first + datetime.timedelta(n) for n in range((last - first).days)]
    combinations = (len(days) - valid_size - test_size) * len(locales) * len(STYLES)
    if min(train_size, valid_size, test_size) < 1 or train_size > combinations:
        raise ValueError(
            f"The sizes must be at least 1, and valid_size + test_size below {len(days):,}, the "
            "number of dates, each of which is in one set only; the others, in each language and "
            f"style, are {max(combinations, 0):,} combinations, the largest train_size: received "
            f"train_size={train_size}, valid_size={valid_size}, test_size={test_size}."
        )
    generator = random.Random(seed)
    generator.shuffle(days)
    held_out = test_size + valid_size
    corpus = Corpus(
        train=_sample_combinations(days[held_out:], locales, train_size, generator),
        valid=_sample_each_day(days[test_size:held_out], locales, generator),
        test=_sample_each_day(days[:test_size], locales, generator),
    )
    _check_one_target_each([*corpus.train, *corpus.valid, *corpus.test])
    return corpus


def falls_back_to_root(language: str) -> bool:
    """Returns whether a locale lacks month names of its own.

    If CLDR has no month names for a locale, it inherits those of the root: `2011 M03 4`.
    """
    locale, root = Locale.parse(language), Locale.parse("root")
    patterns = [get_date_format(style, locale=locale).pattern for style in STYLES]
    fields = filter(None, map(_month_name_field, patterns))
    return any(_month_names(field, locale) == _month_names(field, root) for field in fields)


def _month_name_field(pattern: str) -> str | None:
    """Returns the field of a CLDR pattern that prints a month's name; None if it is a number."""
    unquoted = re.sub(r"'[^']*'", "", pattern)
    match = re.search(r"MMM+|LLL+", unquoted)
    return match.group() if match else None


def _month_names(field: str, locale: Locale) -> list[str]:
    firsts = (datetime.date(2000, month, 1) for month in range(1, 13))
    return [format_date(day, field, locale=locale).casefold().rstrip(".") for day in firsts]


def _format_pair(day: datetime.date, language: str, locale: Locale, style: str) -> Pair:
    return Pair(format_date(day, style, locale=locale), day.isoformat(), language)


def _sample_combinations(
    days: list[datetime.date], locales: dict[str, Locale], size: int, generator: random.Random
) -> list[Pair]:
    """Samples `size` different combinations of a day, a language and a style."""
    languages = list(locales.items())
    pairs = []
    # Combinations are sampled by number: there are millions of them, too many to list.
    for number in generator.sample(range(len(days) * len(languages) * len(STYLES)), size):
        number, style = divmod(number, len(STYLES))
        day, language = divmod(number, len(languages))
        pairs.append(_format_pair(days[day], *languages[language], STYLES[style]))
    return pairs


def _sample_each_day(
    days: list[datetime.date], locales: dict[str, Locale], generator: random.Random
) -> list[Pair]:
    """Returns a pair for each day, with alternating languages and random styles."""
    turns = itertools.cycle(locales.items())
    return [_format_pair(day, *next(turns), generator.choice(STYLES)) for day in days]


def parse_locales(languages: Iterable[str]) -> dict[str, Locale]:
    """Checks languages; returns the locale of each, in their order."""
    if isinstance(languages, str):
        raise ValueError(
            f"languages must be a list, such as [{languages!r}], received {languages!r}."
        )
    advice = "choose locales from LANGUAGES or MORE_LANGUAGES of keras_transformer.data.dates"
    locales: dict[str, Locale] = {}
    for language in languages:
        try:
            locale = Locale.parse(language)
        except (TypeError, ValueError, UnknownLocaleError) as error:
            raise ValueError(
                f"{language!r} is not a locale of Babel, expected an identifier such as 'fr' or "
                f"'pt_BR': {advice}."
            ) from error
        if falls_back_to_root(language):
            example = format_date(datetime.date(2011, 3, 4), "long", locale=locale)
            raise ValueError(
                f"The locale {language!r} has no month names of its own: it writes 2011-03-04 as "
                f"{example!r}, by CLDR's root; {advice}."
            )
        if locale in locales.values():
            raise ValueError(f"languages has {language!r} twice: pass every locale once.")
        locales[language] = locale
    if not locales:
        raise ValueError("languages is empty: pass at least one locale, such as 'fr'.")
    return locales


def _check_one_target_each(pairs: list[Pair]) -> None:
    """Raises if a source string has two targets."""
    seen: dict[str, Pair] = {}
    for pair in pairs:
        first = seen.setdefault(pair.source, pair)
        if first.target != pair.target:
            raise ValueError(
                f"{pair.source!r} is {first.target} in {first.group!r} but {pair.target} in "
                f"{pair.group!r}: omit one of these languages."
            )


if __name__ == "__main__":  # python -m keras_transformer.data.dates 12: that many test dates
    count = int(sys.argv[1])
    test = dates().test[: max(count, len(LANGUAGES))]  # the first ones: one in each language
    print(*(test[i * len(test) // count].source for i in range(count)), sep="\n")
