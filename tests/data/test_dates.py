"""The built-in task: written dates to ISO 8601."""

import collections
import datetime
import hashlib
import itertools
import re
import unicodedata

import babel
import pytest
from babel.dates import format_date

from keras_transformer.data import dates as dates_module
from keras_transformer.data.dates import LANGUAGES, MORE_LANGUAGES, STYLES, dates


@pytest.fixture(scope="module")
def corpus():
    return dates()


def normalize(text):
    """Removes what a tokenizer may remove, so that strings it confuses are equal here."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def test_parts_have_no_date_and_no_string_in_common(corpus):
    parts = corpus.train, corpus.valid, corpus.test
    assert list(map(len, parts)) == [120_000, 1_500, 3_000]
    groups = [collections.Counter(pair.group for pair in part) for part in parts]
    assert groups[1:] == [dict.fromkeys(LANGUAGES, count) for count in (50, 100)]
    assert set(groups[0]) == set(LANGUAGES) and min(groups[0].values()) > 3_500
    strings = [{normalize(pair.source) for pair in part} for part in parts]
    days = [{pair.target for pair in part} for part in parts]
    for kinds in (strings, days):
        assert len(set.union(*kinds)) == sum(map(len, kinds))
        assert [*map(len, kinds)][1:] == [1_500, 3_000]  # each of those once
    others = [dates(train_size=9, valid_size=9, test_size=9, seed=seed) for seed in (1, 2)]
    assert others[0].train != others[1].train and others[0].test != others[1].test
    # A source is one line with the year and the day of its target.
    assert {pair.target[:4] for pair in corpus.train} == set(map(str, range(1900, 2100)))
    for pair in corpus.train + corpus.valid + corpus.test:
        day = datetime.date.fromisoformat(pair.target)
        assert str(day.year) in pair.source
        assert str(day.day) in pair.source.replace(str(day.year), "")
        assert pair.source.strip().splitlines() == [pair.source] and "\t" not in pair.source


def test_training_draws_no_combination_twice(monkeypatch):
    for name in ("FIRST_YEAR", "LAST_YEAR"):  # so that a corpus can hold every combination there is
        monkeypatch.setattr(dates_module, name, 1998)
    languages = ["fr", "de", "hu", "ja"]
    train = dates(languages, train_size=363 * 4 * 3, valid_size=1, test_size=1).train
    # Every combination is drawn, so a repeated one would be missing elsewhere.
    assert set(collections.Counter(pair.target for pair in train).values()) == {4 * 3}
    assert collections.Counter(pair.group for pair in train) == dict.fromkeys(languages, 363 * 3)
    known = {(pair.group, normalize(pair.source)): pair.target for pair in train}
    assert known["fr", "samedi 9 mai 1998"] == known["de", "09.05.1998"] == "1998-05-09"
    assert known["hu", "1998. szeptember 5., szombat"] == "1998-09-05"
    assert known["ja", "1998年5月9日土曜日"] == "1998-05-09"
    corpus = dates(["fr"], train_size=3, valid_size=1, test_size=363)
    pairs = corpus.train + corpus.valid + corpus.test
    assert len({pair.target for pair in pairs}) == 365, "every date"


def test_more_languages_can_be_used_together():
    languages = LANGUAGES + MORE_LANGUAGES
    assert len(set(languages)) == len(languages) > 200
    corpus = dates(languages, train_size=5_000, valid_size=1, test_size=len(languages))
    assert [pair.group for pair in corpus.test] == list(languages)
    for language in languages:  # none falls back to the names of no language
        texts = [format_date(datetime.date(2011, 3, 4), s, locale=language) for s in STYLES]
        assert all("M03" not in text and "2011" in text for text in texts), language


def strings_with_two_dates(languages, days):
    """Returns the strings, normalized, that the languages print for more than one of the days."""
    locales = [babel.Locale.parse(language) for language in languages]
    first_day, clashes = {}, set()
    for day, locale, style in itertools.product(days, locales, STYLES):
        text = normalize(format_date(day, style, locale=locale))
        if first_day.setdefault(text, day) != day:
            clashes.add(text)
    return clashes


# Strings of different years differ, because they hold the year.
LEAP_YEAR = [datetime.date(2000, 1, 1) + datetime.timedelta(n) for n in range(366)]


def test_no_string_has_two_dates():
    assert not strings_with_two_dates(LANGUAGES, LEAP_YEAR)
    days = [datetime.date(1998, 5, 9), datetime.date(1998, 10, 9)]
    # In Duala, "may" is October.
    assert strings_with_two_dates(["es", "dua"], days) == {"9 may 1998"}


@pytest.mark.slow
def test_no_string_of_more_languages_has_two_dates():
    assert not strings_with_two_dates(LANGUAGES + MORE_LANGUAGES, LEAP_YEAR)


@pytest.mark.skipif(babel.__version__ != "2.18.0", reason="another Babel brings another CLDR")
def test_corpus_is_the_one_published_results_are_for(corpus):
    lines = map("\t".join, corpus.train + corpus.valid + corpus.test)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "245cdb3d1ae3df29ce5d7a1c2dce5bdd238c50dfd30a560bd2cb330dbbc8ea49"


def test_mistakes():
    for wrong in ([], "fr", ["fr", "fr"], ["fr", "pt-BR"], [None]):
        message = f"must be a list of different ones of en .*received {re.escape(repr(wrong))}"
        with pytest.raises(ValueError, match=message):
            dates(wrong)
    for sizes in ((0, 1, 1), (9, 73_048, 1), (6, 73_047, 1)):
        with pytest.raises(ValueError, match="The sizes must be at least 1, .* below 73,049"):
            dates(["fr"], *sizes)
