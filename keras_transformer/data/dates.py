"""The built-in task: translates written dates in many languages to ISO 8601.

`samedi 9 mai 1998` becomes `1998-05-09`. The strings come from CLDR through Babel, so the corpus
needs no download, and a translation is either right or wrong. Babel writes the Gregorian calendar
and the digits 0-9 in every language.
"""

import datetime
import itertools
import random
import sys
from collections.abc import Iterable
from typing import Literal

from babel import Locale
from babel.dates import format_date

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
    each date is in only one of training, validation and test set. Since every string of the
    possible languages stands for one date, no validation or test string occurs in training. The
    validation and test sets use each of their dates once, with alternating languages; by default
    they have 50 and 100 pairs per language, so that one error in the test is one per cent of its
    language. The training set has each combination of date, language and style at most once.

    The same arguments give the same corpus in every process; another version of Babel may have
    another version of CLDR with different strings.

    Args:
        languages: Different ones of `LANGUAGES` and `MORE_LANGUAGES`.
        train_size, valid_size, test_size: Number of pairs of each set.
        seed: Seed of the sampling.

    Returns:
        A `Corpus`. The group of a pair is its language.

    Raises:
        ValueError: If a language is unknown or repeated, or a size is out of range.

    Example:

    >>> corpus = dates(languages=["fr", "ja"], train_size=100, valid_size=10, test_size=10)
    >>> len(corpus.train)
    100
    """
    locales = _parse_languages(languages)
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
    return Corpus(
        train=_sample_combinations(days[held_out:], locales, train_size, generator),
        valid=_sample_each_day(days[test_size:held_out], locales, generator),
        test=_sample_each_day(days[:test_size], locales, generator),
    )


def _parse_languages(languages):
    """Returns {language: its locale}."""
    names = list(languages)
    is_valid = names and set(names) <= {*LANGUAGES, *MORE_LANGUAGES}
    if not is_valid or len(set(names)) < len(names) or isinstance(languages, str):
        raise ValueError(
            f"languages must be a list of different ones of {' '.join(LANGUAGES)} and of "
            f"MORE_LANGUAGES in keras_transformer.data.dates, received {languages!r}."
        )
    return {name: Locale.parse(name) for name in names}


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


if __name__ == "__main__":  # python -m keras_transformer.data.dates 12: that many test dates
    count = int(sys.argv[1])
    test = dates().test[: max(count, len(LANGUAGES))]  # the first ones: one in each language
    print(*(test[i * len(test) // count].source for i in range(count)), sep="\n")
