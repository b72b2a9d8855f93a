"""Strategies by name; replicas, and workers that TF_CONFIG names, train like one device."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import make_strategy
from keras_transformer.training.cluster import Cluster, read_cluster, wait_for_workers
from keras_transformer.training.distribution import split_for_replicas
from tests.support import child_process
from tests.support.command_line import python
from tests.support.paths import ROOT, SUPPORT

MIRRORED = SUPPORT / "mirrored_training.py"
TOLERANCES = {"float32": 1e-5, "mixed_float16": 5e-3}  # DESIGN, §3
WORKERS = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def cluster_of(config):
    return read_cluster({"TF_CONFIG": json.dumps(config)})


OPTIONS = {"rows": [7, 1], "recipe": "adam"}
WEIGHTS = {"rows": [23, 2, 1], "recipe": "weights"}
# A first batch that leaves replicas without a row.
RDROP = {"rows": [1, 3], "recipe": "rdrop"}


def on_replicas(count, *tasks):
    return json.loads(python(MIRRORED, count, json.dumps(tasks)).splitlines()[-1])


@pytest.fixture(scope="module")
def two():
    # The canary last: its error ends all that replicas tell each other.
    return on_replicas(2, ("compare", OPTIONS), ("canary", {}))


def assert_same(one, several, precision="float32"):
    assert one.pop("replicas") == 1 < several.pop("replicas")
    tf.nest.assert_same_structure(one, several)
    for name, values in one.items():
        tolerance = (10 if name == "logits" else 1) * TOLERANCES[precision]
        pair = tf.nest.flatten(several[name]), tf.nest.flatten(values)
        relative = 0 if name in ("logits", "weights") else tolerance
        np.testing.assert_allclose(*pair, rtol=relative, atol=tolerance, err_msg=name)


def assert_replicas_equal_one_device(answer, rows, recipe, precision="float32"):
    """First batches of any number of rows; last ones that leave replicas without a row."""
    assert_same(*answer, precision)
    assert answer[0]["steps"] == len(rows)
    assert {"loss", "val_loss", "accuracy", "before_loss"} <= set(answer[0]["history"])


def test_two_replicas_equal_one_device(two):
    assert_replicas_equal_one_device(two[0], **OPTIONS)


@pytest.mark.slow
def test_three_replicas_equal_one_device_and_keep_no_graph():
    compared = [WEIGHTS, RDROP, OPTIONS | {"precision": "mixed_float16"}]
    *answers, graphs = on_replicas(3, *(("compare", one) for one in compared), ("graphs", {}))
    for answer, options in zip(answers, compared, strict=True):
        assert_replicas_equal_one_device(answer, **options)
    assert graphs == 0


def test_keras_still_needs_help_with_replicas(two):
    """Or `make_function` and `maybe_symbolic_build` can do without replicas."""
    odd, outside, (step, difference) = two[1]
    assert "[1,2]" in odd
    assert outside == "Create and compile the model in the scope of the strategy."
    # A loss that is no mean over target tokens is averaged as Keras does.
    assert step > 0.01 and difference < 1e-6


@pytest.mark.parametrize("name", ["auto", "one"])
def test_without_a_gpu_the_cpu_is_taken(name):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == 1
    (device,) = strategy.extended.worker_devices
    assert device.endswith("device:CPU:0")


def test_strategies_that_cannot_be_made(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for arguments, message in (
        (("mirrored", 7), "already initialized the CPU: call make_strategy before"),
        (("many",), "strategy must be one of auto, one, .* received 'many'"),
        (("multiworker",), '"multiworker" needs TF_CONFIG'),
    ):
        with pytest.raises(ValueError, match=message):
            make_strategy(*arguments)


def test_clusters_are_read_in_the_order_of_the_workers_or_refused():
    assert read_cluster({}) is None is read_cluster({"TF_CONFIG": " "})
    assert cluster_of(WORKERS) == Cluster(("a:1", "b:2"), 1)
    operator = {"chief": ["c:1"], "worker": ["a:1", "[::1]:2"], "ps": ["p:1"]}
    for number, (kind, index) in enumerate([("chief", 0), ("worker", 0), ("worker", 1)]):
        cluster = cluster_of({"cluster": operator, "task": {"type": kind, "index": index}})
        assert cluster == Cluster(("c:1", "a:1", "[::1]:2"), number)
        assert cluster.is_chief == (number == 0)
    missing, address = {"type": "worker", "index": 2}, {"worker": ["a", "b:2"]}
    bad = [], {"cluster": {}}, WORKERS | {"task": missing}, WORKERS | {"cluster": address}
    for text in ("workers", *map(json.dumps, bad)):
        with pytest.raises(ValueError, match="TF_CONFIG must be the JSON of a cluster with the"):
            read_cluster({"TF_CONFIG": text})


def test_a_worker_that_never_comes():
    here, there = free_ports(2)
    cluster = Cluster((f"127.0.0.1:{there}", f"127.0.0.1:{here}"), 1)
    with pytest.raises(ValueError, match=rf"the chief \(127.0.0.1:{there}\) did not respond"):
        wait_for_workers(cluster, 0.5)
    with socket.create_server(("127.0.0.1", there)):
        wait_for_workers(cluster, 5)
    with socket.create_server(("", here)), pytest.raises(ValueError, match="cannot listen at port"):
        wait_for_workers(cluster, 0.5)


WATCHED = """
import socket, time
from keras_transformer.training import distribution
from keras_transformer.training.cluster import Cluster

distribution.CHECK_SECONDS, distribution.GRACE_SECONDS = 0.1, 0.5  # seconds
chief = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{chief.getsockname()[1]}"
with distribution.WorkerWatch(Cluster((address, "127.0.0.1:1"), 1)):
    time.sleep(1)
    print("all are there", flush=True)
    chief.close()
    time.sleep(30)
"""


def test_a_worker_that_hangs_is_killed():
    path, program = {"PYTHONPATH": str(ROOT)}, [sys.executable, "-c", WATCHED]
    done = child_process.run(program, env=os.environ | path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "all are there\n")
    *_, said = done.stderr.splitlines()
    lost = r"Lost the chief \(127.0.0.1:\d+\), so this worker, worker 1 \(127.0.0.1:1\), ends too"
    assert re.match(lost, said)


def test_a_workers_replicas_take_its_rows_in_turns():
    ids = tf.constant([[1, 2], [3, 4], [5, 6], [7, 0], [8, 0]])
    parts = split_for_replicas(tf.data.Dataset.from_tensors(((ids, ids), ids)), 3)
    found = [labels.numpy().tolist() for _, labels in parts]
    assert found == [[[1, 2], [7, 0]], [[3, 4], [8, 0]], [[5, 6]]]
    _, last = split_for_replicas(tf.data.Dataset.from_tensors(((ids[:1], ids[:1]), ids[:1])), 2)
    assert [x.numpy().tolist() for x in tf.nest.flatten(last)] == [[[0, 0]]] * 3


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def started(*trainings):
    """Processes that train together, each with trainings of its own; one alone is no worker."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(len(trainings))]}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("TF_CONFIG", None)
    with contextlib.ExitStack() as stack:
        processes = []
        for index, mine in enumerate(trainings):
            if len(trainings) > 1:
                task = {"type": "worker", "index": index}
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            command = [sys.executable, SUPPORT / "workers_training.py", json.dumps(mine)]
            process = child_process.running(command, env=environment, **pipes)
            processes.append(stack.enter_context(process))
        yield processes


def results(*trainings):
    with started(*trainings) as processes:
        outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [list(map(json.loads, output.splitlines())) for output, _ in outputs]


@pytest.mark.parametrize(
    "dead", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.ordeal)]
)
def test_two_workers_equal_one_device_though_one_dies(dead, tmp_path):
    """Its peer ends by itself; started again, they come to what they would have."""
    last = 8 if dead == 0 else random.randrange(1, 10)  # an epoch's history is not saved
    (tmp_path / "points").mkdir()  # before there is one
    rdrop, adam = {"recipe": "rdrop mixed_float16"}, {"recipe": "adam"}
    ((rdrop_alone, adam_alone),) = results([rdrop, adam])
    adam |= {"points": str(tmp_path / "points")}
    ends = [[rdrop, adam | {"die": last if index == dead else None}] for index in (0, 1)]
    with started(*ends) as processes:
        dying, survivor = processes[dead], processes[1 - dead]
        output, _ = dying.communicate()
        other, errors = survivor.communicate(timeout=35)  # three checks, and the grace period
    assert survivor.returncode not in (0, None), last
    name = "the chief" if dead == 0 else "worker 1"
    assert f"WorkerLostError: Lost {name} (127.0.0.1:" in errors, (last, errors)
    assert output == other
    talk, rdrop_together = map(json.loads, output.splitlines())
    assert talk["agreed"] == {"x": 3.5, "y": 1.0} and talk["gathered"] == [[0, 7], [1, 7]]
    said = r"The texts of worker 1 \(127.0.0.1:\d+\) differ from those of the chief \(127"
    assert re.match(said, talk["said"])
    assert_same(rdrop_alone, rdrop_together, "mixed_float16")
    (_, resumed), (_, again) = results([adam], [adam])
    assert resumed == again
    assert_same(adam_alone, resumed)
