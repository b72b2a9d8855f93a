"""The benchmark itself: that it counts and compares right, and runs on toy sizes."""

import json
import re
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import __main__ as program
from benchmarks.report import bars, table
from benchmarks.shapes import SHAPES, Shape
from benchmarks.side_by_side import System, Timing, time_systems
from benchmarks.timed_fit import TimedFit
from benchmarks.vocabulary import synthetic_tokenizer
from tests.support import child_process


def test_operations_by_hand():
    shape = Shape(1, d_model=2, d_ff=3, heads=1, vocabulary=5, rows=1, length=1, steps=1)
    encoder = 2 * (4 * 2 * 2) + 2 * (2 + 2) + 2 * (2 * 2 * 3)  # projections, attention, inner
    decoder = 2 * (8 * 2 * 2) + 2 * 2 * (2 + 2) + 2 * (2 * 2 * 3)
    assert shape.training_flops() == 3 * (encoder + decoder + 2 * 2 * 5)


def test_synthetic_vocabulary_reads_back():
    tokenizer = synthetic_tokenizer(50)
    assert tokenizer.vocabulary_size == 50
    assert tokenizer("w7 w49").numpy().tolist() == [7, 49]
    assert tokenizer.detokenize([7, 49]).numpy() == b"w7 w49"


def timing(name, *milliseconds):
    return Timing(name, tuple(value / 1000 for value in milliseconds), memory=100, first=2.5)


def test_ratios():
    timings = [timing("ours, float32, graph", 100, 90, 300), timing("PyTorch nn.Transformer", 150)]
    assert "| PyTorch nn.Transformer | 150.0 | 150.0–150.0 | 1.50 | 2.5 | 100 |" in table(timings)
    lines = bars({"training step, small": timings}, ["small"]).splitlines()
    assert lines[2:] == [
        "| ● train, small, float32 | PyTorch nn.Transformer | 1.6 | 1.50 | ours, float32, graph |"
    ]


def test_cores_apart_are_compared_with_cores_together_also_where_they_lose():
    names = "as the command", "cores together"
    how = [timing(f"ours, float32, graph, {name}", 2e6) for name in names]
    how[1] = timing(how[1].name, 1e6)
    found = bars({"cores apart or together, small": how}, ["small"]).splitlines()[2:]
    assert found == [
        f"| train, small, float32, cores apart | {how[1].name} |  | 0.50 | {how[0].name} |"
    ]
    found = bars({"cores apart or together, small": [*how, timing("2048³", 1e6)]}, ["small"])
    shares = [line.split("|")[-3].strip() for line in found.splitlines()[3:]]
    work = SHAPES["small"].training_flops() / (2 * 2048**3)
    assert shares == [f"{work / 2:.2f}", f"{work:.2f}"]


@pytest.mark.ordeal
def test_systems_take_turns_and_missing_ones_are_left_out(capfd):
    size = {"size": 64, "repetitions": 1}
    systems = [
        System("one", "ours", "matrix_product", size),
        System("two", "ours", "matrix_product", size, work=2),
        System("absent", "no_such_module", "matrix_product"),
    ]
    one, two = time_systems(systems, rounds=2)
    assert (one.name, two.name) == ("one", "two")
    assert len(one.seconds) == len(two.seconds) == 2 and min(one.seconds) > 0 and one.memory > 50
    assert "absent is left out: ModuleNotFoundError" in capfd.readouterr().err


def test_what_fit_does_after_training_is_not_timed():
    class Stalls(keras.Sequential):
        def fit(self, *arguments, **options):
            super().fit(*arguments, **options)
            time.sleep(0.3)

    model = Stalls([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1)))).repeat(3)
    for options in ({}, {"steps_per_epoch": 2}):
        fit, started = TimedFit(model, dataset, result=7, **options), time.perf_counter()
        assert fit() == 7 and fit() == 7
        assert 0 < fit.seconds <= time.perf_counter() - started - 0.6


@pytest.mark.ordeal
def test_profile_of_a_step():
    command = [sys.executable, "-m", "benchmarks.profile"]
    done = child_process.run([*command, "toy"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    title, *lines = done.stdout.splitlines()
    step, everything = (float(number) for number in re.findall(r"[0-9.]+", title))
    kinds = {kind: float(time) for time, kind in (line.split() for line in lines)}
    assert title.startswith("toy: ") and step > 0 and everything >= sum(kinds.values()) - 1
    assert "ResourceApplyAdam" in kinds and any(kind.endswith("MatMul") for kind in kinds)
    assert list(kinds.values()) == sorted(kinds.values(), reverse=True)


@pytest.mark.ordeal
def test_beams_of_a_run(tmp_path):
    (tmp_path / "pairs.tsv").write_text("9 May 1998\t1998-05-09\n1 June 2001\t2001-06-01\n")
    options = ["--source", tmp_path / "pairs.tsv", "--beam-sizes", "2", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.beams", "tests/fixtures/format-1/run"]
    done = child_process.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    title, _, *table = done.stdout.splitlines()
    assert title.startswith("2 sentences") and len(table) == 4
    number = r"\d+\.\d\d"
    cells = rf"{number} \({number}\) \| {number} % \({number} %\) \| {number} \({number}\)"
    for row, length_penalty in zip(table[2:], "01", strict=True):
        assert re.fullmatch(rf"\| 2 \| {length_penalty} \| {cells} \|", row)


@pytest.mark.ordeal
def test_a_part_on_toy_sizes(tmp_path, monkeypatch, capsys):
    """A system of each kind: in memory, exported, and another library."""
    for name in ("_in_memory", "_exported", "_ctranslate2"):
        systems = getattr(program, name)
        monkeypatch.setattr(program, name, lambda options, of=systems: of(options)[:1])
    options = {"parts": ("beam",), "shapes": ("toy",), "rounds": 1, "output": str(tmp_path)}
    program.main(program.Options(**options))
    (timings,) = json.loads((tmp_path / "results.json").read_text())["results"].values()
    ours = {"ours in memory, the command", "ours exported, as advised"}
    assert {one["name"] for one in timings} >= ours | {"CTranslate2 float32"}
    printed = capsys.readouterr().out
    for how in ("in memory", "exported"):
        assert f"| ● beam 4, toy, batch 32, {how} | CTranslate2 float32 |" in printed


@pytest.mark.ordeal
def test_corpora_on_toy_sizes(tmp_path, capsys):
    """Every number is measured; what an older checkout does is left out without one."""
    from benchmarks import corpora

    found = corpora.measure(20_011, 3_000, rounds=1, steps=0)
    (row,) = found["reading"].values()
    assert set(row) == {*corpora.COLUMNS[:3]} and all(value > 0 for value in row.values())
    assert set(found["lines a second"]) == {"unigram", "bpe"}
    for rates in found["lines a second"].values():
        assert all(rate > 0 for both in rates.values() for rate in both)
    assert "| prepared, 20,011 |" in capsys.readouterr().out
