"""The ops that are opened unasked are those of our own exports, and none that reaches out."""

import re

import pytest

from keras_transformer.serving.acceptance.graph import OURS, SAVER
from tests.support.exported_operations import exported_operations, operations_of

# Whatever files, connections, other programs and Python are reached by.
OUTWARD = re.compile(
    "File|Save|Restore|Checkpoint|Print|Py|Xla|Dataset|Iterator|Reader|Summary|Socket|Rpc|Remote"
    "|Queue|Table|Debug|Plugin|Send|Recv|Kafka|Sql|Decode(?!rs)|Stage|Barrier|Mutex"
)


def test_an_export_of_all_signatures_holds_no_others(toy_version):
    assert operations_of(toy_version) <= OURS | SAVER


def test_none_reaches_out():
    assert [name for name in sorted(OURS) if OUTWARD.search(name)] == []
    assert all(OUTWARD.search(name) or name == "ShardedFilename" for name in SAVER)


@pytest.mark.ordeal
def test_the_list_is_what_exports_hold():
    assert exported_operations() == OURS | SAVER
