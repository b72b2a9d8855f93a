"""The workers that TF_CONFIG names: their addresses, and whether they answer."""

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

TF_CONFIG = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
PATIENCE = 300.0  # seconds that workers wait for each other at the start
TYPES = ("chief", "worker")  # tasks that train, in the order of their numbers
PAUSE = 0.2  # seconds between two tries to reach a worker


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together.

    Args:
        addresses: `"host:port"` of each worker; the first one is the chief.
        index: Which of them this process is.
    """

    addresses: tuple[str, ...]
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files."""
        return self.index == 0

    def name(self, index: int) -> str:
        """The name of a worker in messages."""
        role = "the chief" if index == 0 else f"worker {index}"
        return f"{role} ({self.addresses[index]})"

    def missing(self, seconds: float = 2.0) -> list[str]:
        """The names of the other workers that do not answer at their addresses."""
        others = [index for index in range(len(self.addresses)) if index != self.index]
        return [
            self.name(index) for index in others if not _answers(self.addresses[index], seconds)
        ]


def read_cluster(environment: dict[str, str] | None = None) -> Cluster | None:
    """Reads TF_CONFIG, which people or Kubernetes' training operators set.

    Args:
        environment: Environment variables; by default those of this process.

    Returns:
        `Cluster`; None without TF_CONFIG.

    Raises:
        ValueError: If it is not valid JSON, its task is missing, or the task does not train.
    """
    text = (os.environ if environment is None else environment).get(TF_CONFIG, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}): expected such as {EXAMPLE}.") from None
    cluster, task = (_part(config, name) for name in ("cluster", "task"))
    kind, index = task.get("type"), task.get("index", 0)
    if kind not in TYPES:
        raise ValueError(
            f"TF_CONFIG makes this process a {kind!r}: chief and worker train; leave parameter "
            "servers and evaluators out."
        )
    addresses: list[str] = []
    for name in TYPES:
        if name == kind:
            number = len(addresses) + index if isinstance(index, int) else -1
        addresses += _addresses(cluster, name)
    held = len(_addresses(cluster, kind))
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < held:
        raise ValueError(
            f"TF_CONFIG makes this process {kind} {index!r}, but its cluster has {held} of that "
            f"type: expected an index below that, such as {EXAMPLE}."
        )
    return Cluster(tuple(addresses), number)


def joined_cluster() -> Cluster:
    """Reads the cluster of a process that has joined it.

    Raises:
        ValueError: If TF_CONFIG has been unset since.
    """
    cluster = read_cluster()
    if cluster is None:
        raise ValueError("TF_CONFIG is missing: keep it as it was when the workers joined.")
    return cluster


def cluster_of(strategy: str) -> Cluster | None:
    """Reads the cluster that a strategy of this name joins; None if it joins none.

    Raises:
        ValueError: See `read_cluster`; also if the strategy needs workers and there are none.
    """
    if strategy not in ("auto", "multiworker"):
        return None
    cluster = read_cluster()
    if cluster is None and strategy == "multiworker":
        raise ValueError(f"multiworker needs the variable TF_CONFIG, such as {EXAMPLE}.")
    return cluster if cluster and len(cluster.addresses) > 1 else None


def wait_for_workers(cluster: Cluster, patience: float = PATIENCE) -> None:
    """Waits until each other worker answers at its address; answers them meanwhile.

    TensorFlow itself would wait forever.

    Args:
        cluster: `Cluster`.
        patience: Seconds.

    Raises:
        ValueError: If one does not answer in time, naming it; or the address of this process
            cannot be listened at.
    """
    end = time.monotonic() + patience
    missing = [index for index in range(len(cluster.addresses)) if index != cluster.index]
    with _listening(cluster):
        while missing:
            missing = [index for index in missing if not _answers(cluster.addresses[index], 1.0)]
            if missing and time.monotonic() > end:
                names = ", ".join(cluster.name(index) for index in missing)
                raise ValueError(
                    f"{names} did not answer within {patience:g} seconds: start every worker that "
                    "TF_CONFIG names, and see that they reach each other at these addresses."
                )
            time.sleep(PAUSE if missing else 0)


@contextlib.contextmanager
def _listening(cluster: Cluster) -> Iterator[None]:
    """Listens at this worker's address, as TensorFlow will do afterwards."""
    _, port = _split(cluster.addresses[cluster.index])
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
            server.listen(128)  # connections need not be accepted to be made
        except OSError as error:
            raise ValueError(
                f"This process, {cluster.name(cluster.index)}, cannot listen at port {port} "
                f"({error.strerror}): stop what else does, or name another port in TF_CONFIG."
            ) from None
        yield


def _answers(address, seconds):
    """Returns whether something listens at an address."""
    try:
        with socket.create_connection(_split(address), seconds):
            return True
    except OSError:
        return False


def _part(config: Any, name: str) -> dict[str, Any]:
    part = config.get(name) if isinstance(config, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"TF_CONFIG has no {name}: expected such as {EXAMPLE}.")
    return part


def _addresses(cluster: dict[str, Any], kind: str) -> list[str]:
    """The addresses of one type of task, checked."""
    addresses = cluster.get(kind, [])
    if not isinstance(addresses, list):
        raise ValueError(f"TF_CONFIG: {kind} must be a list of host:port, received {addresses!r}.")
    for address in addresses:
        try:
            _split(address)
        except (ValueError, AttributeError):
            raise ValueError(
                f"TF_CONFIG: {address!r} is not the address of a {kind}: expected host:port."
            ) from None
    return addresses


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not 0 < int(port) < 1 << 16:
        raise ValueError(address)
    return host.strip("[]"), int(port)
