"""The workers in TF_CONFIG: their addresses, and whether they respond."""

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
START_TIMEOUT = 300.0  # seconds that workers wait for each other at the start
TYPES = ("chief", "worker")  # tasks that train, in the order of their numbers
RETRY_SECONDS = 0.2  # between two attempts to reach a worker


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together.

    Args:
        addresses: `"host:port"` of each worker; the first one is the chief.
        index: Index of this process among them.
    """

    addresses: tuple[str, ...]
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, which writes files."""
        return self.index == 0

    def name(self, index: int) -> str:
        """Returns the name of a worker for messages."""
        role = "the chief" if index == 0 else f"worker {index}"
        return f"{role} ({self.addresses[index]})"

    def find_missing(self) -> list[str]:
        """Returns the names of the other workers that do not respond at their addresses."""
        return [
            self.name(index)
            for index, address in enumerate(self.addresses)
            if index != self.index and not _responds(address, 2.0)
        ]


def read_cluster(environment: dict[str, str] | None = None) -> Cluster | None:
    """Reads TF_CONFIG, which users or Kubernetes' training operators set.

    Args:
        environment: Environment variables; by default those of this process.

    Returns:
        `Cluster`; None without TF_CONFIG.
    """
    text = (os.environ if environment is None else environment).get(TF_CONFIG, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}). Example: {EXAMPLE}.") from None
    cluster, task = (_read_section(config, name) for name in ("cluster", "task"))
    kind, index = task.get("type"), task.get("index", 0)
    if kind not in TYPES:
        raise ValueError(
            f"The task type in TF_CONFIG must be 'chief' or 'worker', received {kind!r}: parameter "
            "servers and evaluators are not supported."
        )
    addresses: list[str] = []
    for name in TYPES:
        if name == kind:
            number = len(addresses) + index if isinstance(index, int) else -1
        addresses += _addresses(cluster, name)
    count = len(_addresses(cluster, kind))
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise ValueError(
            f"The task index in TF_CONFIG must be an integer below {count}, the number of "
            f"addresses of type {kind}, received {index!r}: expected, for example, {EXAMPLE}."
        )
    return Cluster(tuple(addresses), number)


def joined_cluster() -> Cluster:
    """Reads the cluster of a process that has joined it."""
    cluster = read_cluster()
    if cluster is None:
        raise ValueError("TF_CONFIG is missing: do not unset it after the workers have joined.")
    return cluster


def cluster_for_strategy(strategy: str) -> Cluster | None:
    """Returns the cluster that a strategy of this name joins, or None."""
    if strategy not in ("auto", "multiworker"):
        return None
    cluster = read_cluster()
    if cluster is None and strategy == "multiworker":
        raise ValueError(
            f'The strategy "multiworker" needs the environment variable TF_CONFIG, such as '
            f"{EXAMPLE}."
        )
    return cluster if cluster and len(cluster.addresses) > 1 else None


def wait_for_workers(cluster: Cluster, timeout: float = START_TIMEOUT) -> None:
    """Waits until every other worker responds at its address; responds to them meanwhile.

    TensorFlow itself would wait forever.

    Args:
        cluster: `Cluster`.
        timeout: Seconds.
    """
    end = time.monotonic() + timeout
    missing = [index for index in range(len(cluster.addresses)) if index != cluster.index]
    with _listen(cluster):
        while missing:
            missing = [index for index in missing if not _responds(cluster.addresses[index], 1.0)]
            if missing and time.monotonic() > end:
                names = ", ".join(cluster.name(index) for index in missing)
                raise ValueError(
                    f"{names} did not respond within {timeout:g} seconds: start all workers in "
                    "TF_CONFIG, and make sure that they reach each other at these addresses."
                )
            time.sleep(RETRY_SECONDS if missing else 0)


@contextlib.contextmanager
def _listen(cluster: Cluster) -> Iterator[None]:
    """Listens at this worker's address, as TensorFlow will afterwards."""
    _, port = _split_address(cluster.addresses[cluster.index])
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
            server.listen(128)  # clients can connect although no connection is accepted
        except OSError as error:
            raise ValueError(
                f"This process, {cluster.name(cluster.index)}, cannot listen at port {port} "
                f"({error.strerror}): stop the process that uses it, or choose another port in "
                "TF_CONFIG."
            ) from None
        yield


def _responds(address, seconds):
    """Returns whether a process listens at an address."""
    try:
        with socket.create_connection(_split_address(address), seconds):
            return True
    except OSError:
        return False


def _read_section(config: Any, name: str) -> dict[str, Any]:
    part = config.get(name) if isinstance(config, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"TF_CONFIG has no {name}: expected, for example, {EXAMPLE}.")
    return part


def _addresses(cluster: dict[str, Any], kind: str) -> list[str]:
    """Returns the addresses of one type of task; raises if one is invalid."""
    addresses = cluster.get(kind, [])
    if not isinstance(addresses, list):
        raise ValueError(f"TF_CONFIG: {kind} must be a list of host:port, received {addresses!r}.")
    for address in addresses:
        try:
            _split_address(address)
        except (ValueError, AttributeError):
            raise ValueError(
                f"TF_CONFIG: {address!r} is not the address of a {kind}: expected host:port."
            ) from None
    return addresses


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not 0 < int(port) < 1 << 16:
        raise ValueError(address)
    return host.strip("[]"), int(port)
