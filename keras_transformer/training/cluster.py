"""The workers in TF_CONFIG: their addresses, and whether they respond."""

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import cast

EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
START_TIMEOUT = 300.0  # seconds that workers wait for each other at the start
TYPES = ("chief", "worker")  # tasks that train, in the order of their numbers
RETRY_SECONDS = 0.2  # between two attempts to reach a worker


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together."""

    addresses: tuple[str, ...]  # "host:port" of each worker; the first one is the chief
    index: int  # of this process among them

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
    """Reads TF_CONFIG, which users or Kubernetes' training operators set; None without it."""
    text = (os.environ if environment is None else environment).get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        task = config["task"]["type"], config["task"].get("index", 0)
        addresses = {
            (kind, index): address
            for kind in TYPES
            for index, address in enumerate(config["cluster"].get(kind, []))
        }
        for address in addresses.values():
            _split_address(address)
        return Cluster(tuple(addresses.values()), list(addresses).index(task))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            "TF_CONFIG must be the JSON of a cluster with the task of this process, such as "
            f"{EXAMPLE}, received {text}."
        ) from None


def joined_cluster() -> Cluster:
    """Reads the cluster of a process that has joined it."""
    return cast(Cluster, read_cluster())


def cluster_for_strategy(strategy: str) -> Cluster | None:
    """Returns the cluster that a strategy of this name joins, or None."""
    if strategy not in ("auto", "multiworker"):
        return None
    cluster = read_cluster()
    if cluster is None and strategy == "multiworker":
        raise ValueError(f'The strategy "multiworker" needs TF_CONFIG, such as {EXAMPLE}.')
    return cluster if cluster and len(cluster.addresses) > 1 else None


def wait_for_workers(cluster: Cluster, timeout: float = START_TIMEOUT) -> None:
    """Waits until every other worker responds at its address; responds to them meanwhile.

    TensorFlow itself would wait forever.
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


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not 0 < int(port) < 1 << 16:
        raise ValueError(address)
    return host.strip("[]"), int(port)
