"""A file of translations cut off anywhere: what of it is whole."""

import pytest

from keras_transformer.cli.unfinished_output import UnfinishedOutput

PLAIN = ["eins ||| zwei", "", "drei", "vier ü"]
# Two translations of each line; line 1 is empty.
GROUPS = ["0 ||| a ||| -1.0\n0 ||| b ||| -2.0\n", "1 |||  ||| 0.0\n1 |||  ||| -1e9\n"]
GROUPS += [f"{i} ||| a ||| b ||| -1.0\n{i} ||| ü ||| -2.0\n" for i in (2, 3)]


@pytest.mark.parametrize("n_best", [None, 2])
def test_cut_off_at_every_byte(n_best, tmp_path):
    parts = GROUPS if n_best else [f"{line}\n" for line in PLAIN]
    parts = [part.encode() for part in parts]
    whole = b"".join(parts)
    for size in range(len(whole) + 1):
        (tmp_path / "out").write_bytes(whole[:size])
        output = UnfinishedOutput(tmp_path / "out", n_best)
        done = max(i for i in range(5) if len(b"".join(parts[:i])) <= size)
        assert output.done == done, whole[:size]
        with output.open() as file:
            file.write("neu\n")
        assert (tmp_path / "out").read_bytes() == b"".join(parts[:done]) + b"neu\n"


def test_a_file_that_is_not_there_is_begun(tmp_path):
    output = UnfinishedOutput(tmp_path / "out")
    assert output.done == 0 and not (tmp_path / "out").exists()
    output.open().close()
    assert (tmp_path / "out").read_bytes() == b""
