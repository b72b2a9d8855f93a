"""Tests of the built-in task: written dates to ISO 8601."""

import collections
import datetime
import hashlib
import re
import unicodedata

import babel
import pytest
from babel.dates import format_date, get_date_format

from keras_transformer.data import dates as dates_module
from keras_transformer.data.dates import (
    LANGUAGES,
    MORE_LANGUAGES,
    STYLES,
    dates,
)
from tests.support.command_line import python


@pytest.fixture(scope="module")
def corpus():
    return dates()


@pytest.fixture
def only_1998(monkeypatch):
    """Makes 1998 the only year, so that a corpus can hold every combination there is."""
    monkeypatch.setattr(dates_module, "FIRST_YEAR", 1998)
    monkeypatch.setattr(dates_module, "LAST_YEAR", 1998)


def sources(pairs):
    return [pair.source for pair in pairs]


def targets(pairs):
    return [pair.target for pair in pairs]


def normalize(text):
    """Removes what a tokenizer may remove, so that strings it confuses are equal here."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def month_name_field(pattern):
    """The field of a CLDR pattern that prints a month's name; None if it is a number."""
    match = re.search(r"MMM+|LLL+", re.sub(r"'[^']*'", "", pattern))
    return match.group() if match else None


def month_names(field, locale):
    firsts = (datetime.date(2000, month, 1) for month in range(1, 13))
    return [format_date(day, field, locale=locale).casefold().rstrip(".") for day in firsts]


def ambiguous_months(languages):
    """The month names that do not mean the same month in every language.

    Names are compared as the three formats print them, without case and final full stop.
    """
    meanings = {}
    for language in languages:
        locale = babel.Locale.parse(language)
        patterns = (get_date_format(style, locale=locale).pattern for style in STYLES)
        fields = dict.fromkeys(filter(None, map(month_name_field, patterns)))
        for field in fields:
            for month, name in enumerate(month_names(field, locale), start=1):
                speakers = meanings.setdefault(name, {}).setdefault(month, [])
                if language not in speakers:
                    speakers.append(language)
    return {name: months for name, months in meanings.items() if len(months) > 1}


def strings_with_two_dates(languages, days):
    """Returns the strings, normalized, that the languages print for more than one of the days."""
    locales = [babel.Locale.parse(language) for language in languages]
    first_day, clashes = {}, set()
    for day in days:
        for locale in locales:
            for style in STYLES:
                text = normalize(format_date(day, style, locale=locale))
                if first_day.setdefault(text, day) != day:
                    clashes.add(text)
    return clashes


def every_day(year):
    first = datetime.date(year, 1, 1).toordinal()
    last = datetime.date(year, 12, 31).toordinal()
    return map(datetime.date.fromordinal, range(first, last + 1))


def test_parts_have_no_date_and_no_string_in_common(corpus):
    parts = corpus.train, corpus.valid, corpus.test
    assert list(map(len, parts)) == [120_000, 1_500, 3_000]
    train, *held_out = ({*targets(part), *map(normalize, sources(part))} for part in parts)
    assert not train & (held_out[0] | held_out[1]) and not held_out[0] & held_out[1]
    for part in parts[1:]:  # each date and string once
        assert len(set(targets(part))) == len(set(map(normalize, sources(part)))) == len(part)


def test_a_source_is_one_line_with_the_year_and_the_day_of_its_target(corpus):
    assert {target[:4] for target in targets(corpus.train)} == set(map(str, range(1900, 2100)))
    for pair in corpus.train + corpus.valid + corpus.test:
        day = datetime.date.fromisoformat(pair.target)
        assert str(day.year) in pair.source
        assert str(day.day) in pair.source.replace(str(day.year), "")
        assert pair.source.strip().splitlines() == [pair.source] and "\t" not in pair.source


def test_training_draws_no_combination_twice(only_1998):
    languages = ["fr", "ja"]
    train = dates(languages, train_size=363 * 2 * 3, valid_size=1, test_size=1).train
    # Every combination is drawn, so a repeated one would be missing elsewhere.
    assert set(collections.Counter(targets(train)).values()) == {2 * 3}
    assert collections.Counter(pair.group for pair in train) == {"fr": 363 * 3, "ja": 363 * 3}
    assert "1998年5月9日土曜日" in sources(train)


def test_languages_are_many_and_each_is_in_every_part(corpus):
    assert len(set(LANGUAGES)) == len(LANGUAGES) >= 20
    count = collections.Counter
    assert count(pair.group for pair in corpus.test) == dict.fromkeys(LANGUAGES, 100)
    assert count(pair.group for pair in corpus.valid) == dict.fromkeys(LANGUAGES, 50)
    train = count(pair.group for pair in corpus.train)
    assert set(train) == set(LANGUAGES)
    assert min(train.values()) > 3_500


def test_languages_have_fourteen_scripts(corpus):
    letters = filter(str.isalpha, "".join(sources(corpus.test)))
    # The first word of a letter's name is its script, but for the apostrophe of Ukrainian.
    assert {unicodedata.name(letter).split()[0] for letter in letters} - {"MODIFIER"} == {
        *("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "ETHIOPIC"),
        *("DEVANAGARI", "BENGALI", "TAMIL", "THAI", "HANGUL", "CJK"),
    }


def test_no_listed_language_falls_back_to_root():
    for language in LANGUAGES + MORE_LANGUAGES:
        texts = [format_date(datetime.date(2011, 3, 4), s, locale=language) for s in STYLES]
        assert not [text for text in texts if "M03" in text], language


def test_no_month_name_of_a_listed_language_means_another_month():
    assert ambiguous_months(LANGUAGES) == {}
    assert ambiguous_months(LANGUAGES + MORE_LANGUAGES) == {}


def test_ambiguous_months_finds_croatian():
    assert ambiguous_months([*LANGUAGES, "hr"]) == {
        "listopada": {11: ["pl"], 10: ["hr"]},
        "lis": {11: ["pl"], 10: ["hr"]},
        "lip": {7: ["pl"], 6: ["hr"]},
    }
    assert ambiguous_months(["pl", "lu"]) == {"lut": {2: ["pl"], 9: ["lu"]}}  # lut, Lut
    assert ambiguous_months(["pt", "mfe"]) == {"out": {10: ["pt"], 8: ["mfe"]}}  # out., out


def test_more_languages_can_be_used_together():
    languages = LANGUAGES + MORE_LANGUAGES
    assert len(set(languages)) == len(languages) > 200
    corpus = dates(languages, train_size=5_000, valid_size=1, test_size=len(languages))
    assert [pair.group for pair in corpus.test] == list(languages)


def test_no_string_has_two_dates():
    # A leap year, and the same day and month one century earlier, for want of a century.
    assert not strings_with_two_dates(LANGUAGES, [*every_day(2000), *every_day(1900)])


def test_strings_with_two_dates_finds_clashes():
    days = [datetime.date(1998, 5, 9), datetime.date(1998, 10, 9)]
    # In Duala, "may" is October.
    assert strings_with_two_dates(["es", "dua"], days) == {"9 may 1998"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("languages", "years"),
    # Strings of different years differ, because they hold the year. In eleven years, a day and
    # month falls on every weekday.
    [(LANGUAGES, range(1900, 2100)), (LANGUAGES + MORE_LANGUAGES, range(1996, 2007))],
    ids=["languages", "more"],
)
def test_no_string_has_two_dates_in_many_years(languages, years):
    for year in years:
        new_year = datetime.date(year, 1, 1)
        texts = [format_date(new_year, s, locale=name) for name in languages for s in STYLES]
        assert [text for text in texts if str(year) not in text] == []
        assert not strings_with_two_dates(languages, every_day(year)), year


@pytest.mark.parametrize(
    ("language", "source", "target"),
    [
        ("fr", "samedi 9 mai 1998", "1998-05-09"),
        ("en", "May 9, 1998", "1998-05-09"),
        ("de", "09.05.1998", "1998-05-09"),
        ("hu", "1998. szeptember 5., szombat", "1998-09-05"),
        ("pl", "30 listopada 1998", "1998-11-30"),
        ("ru", "воскресенье, 1 февраля 1998 г.", "1998-02-01"),
        ("el", "Σάββατο 9 Μαΐου 1998", "1998-05-09"),
        ("ja", "1998/12/31", "1998-12-31"),
        ("ko", "1998년 5월 9일 토요일", "1998-05-09"),
        ("zh", "1998年5月9日星期六", "1998-05-09"),
    ],
)
def test_known_dates(only_1998, language, source, target):
    corpus = dates([language], train_size=363 * 3, valid_size=1, test_size=1)
    known = {normalize(pair.source): pair.target for pair in corpus.train}
    assert known[normalize(source)] == target


def test_seed_changes_the_corpus():
    one, two = (dates(train_size=99, valid_size=9, test_size=9, seed=seed) for seed in (1, 2))
    assert set(targets(one.test)) != set(targets(two.test))
    assert one.train != two.train


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_other_process_gives_the_same_corpus_without_keras(hash_seed):
    program = """
import sys
sys.argv[0] = "keras-transformer"
from keras_transformer.data.dates import dates
assert not {"keras", "tensorflow"} & set(sys.modules)
print(ascii(dates(train_size=100, valid_size=9, test_size=9)))
"""
    expected = ascii(dates(train_size=100, valid_size=9, test_size=9))
    assert python("-c", program, PYTHONHASHSEED=hash_seed) == f"{expected}\n"


@pytest.mark.skipif(babel.__version__ != "2.18.0", reason="another Babel brings another CLDR")
def test_corpus_is_the_one_published_results_are_for(corpus):
    lines = map("\t".join, corpus.train + corpus.valid + corpus.test)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "245cdb3d1ae3df29ce5d7a1c2dce5bdd238c50dfd30a560bd2cb330dbbc8ea49"


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ([], r"received \[\]"),
        ("fr", "received 'fr'"),
        (["fr", "fr"], r"received \['fr', 'fr'\]"),
        (["fr", "klingon"], "must be different ones of LANGUAGES and MORE_LANGUAGES"),
        (["pt-BR"], "received"),
        ([None], "received"),
        (["fr", "nv"], "received"),
    ],
)
def test_bad_languages(languages, message):
    with pytest.raises(ValueError, match=message):
        dates(languages, train_size=20_000, valid_size=10, test_size=10)


@pytest.mark.parametrize(
    "sizes",
    [
        {"train_size": 0},
        {"valid_size": -1},
        {"valid_size": 73_048, "test_size": 1},
        {"train_size": 6, "valid_size": 73_047, "test_size": 1, "languages": ["fr"]},
    ],
)
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match="The sizes must be at least 1, .* below 73,049") as error:
        dates(**sizes)
    assert all(
        f"{name}={size}" in str(error.value) for name, size in sizes.items() if size != ["fr"]
    )


def test_sizes_may_use_every_date():
    corpus = dates(["fr"], train_size=3, valid_size=1, test_size=73_047)
    assert len(set(targets(corpus.train + corpus.valid + corpus.test))) == 73_049
