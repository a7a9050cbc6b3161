"""A client of ZooKeeper for the job board, whose server is a dict in this process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kazoo import exceptions as errors


class Stat(NamedTuple):
    version: int
    ctime: float
    mtime: float


class Node(NamedTuple):
    data: bytes
    stat: Stat
    session: Client | None


class Server:
    """The nodes of a server, by path.

    :ivar late: paths that reads do not find before the next `sync`, as on a server that is behind.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nodes: dict[str, Node] = {}
        self.numbers = itertools.count()
        self.late: set[str] = set()

    def commit(self, session: Client, steps: list[Step]) -> list[Any]:
        """Carry out all steps or none. Return a result or an exception for each."""
        nodes, results = dict(self.nodes), list[Any]()
        for step in steps:
            try:
                results.append(step(nodes, session))
            except errors.KazooException as error:
                failed = [errors.RolledBackError() for _ in results]
                others = [errors.RuntimeInconsistency() for _ in steps[len(failed) + 1 :]]
                return [*failed, error, *others]
        self.nodes = nodes
        return results


Step = Callable[[dict[str, Node], "Client"], Any]


@dataclass
class Answer:
    """An asynchronous result of kazoo that has arrived."""

    value: Any

    def get(self, timeout: float | None = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Handler:
    timeout_exception = TimeoutError


class Client:
    """The part of `kazoo.client.KazooClient` that the board uses.

    :ivar connected: False: the session continues without a connection.
    :ivar loses_answers: commits are carried out without an answer.
    """

    handler = Handler

    def __init__(self, server: Server) -> None:
        self._server = server
        self.connected = True
        self.loses_answers = False

    def start(self, timeout: float) -> None:
        """Do nothing."""

    def ensure_path(self, path: str) -> None:
        with self._server.lock:
            self._server.nodes.setdefault(path, _node(b""))

    def ensure_path_async(self, path: str) -> Answer:
        self.ensure_path(path)
        return Answer(True)

    def sync_async(self, path: str) -> Answer:
        self._server.late.clear()
        return Answer(path)

    def get_async(self, path: str) -> Answer:
        with self._server.lock:
            node = None if path in self._server.late else self._server.nodes.get(path)
        return Answer(errors.NoNodeError() if node is None else (node.data, node.stat))

    def get_children_async(self, path: str) -> Answer:
        with self._server.lock:
            nodes = self._server.nodes.keys() - self._server.late
        start = f"{path}/"
        names = [node.removeprefix(start) for node in nodes if node.startswith(start)]
        return Answer([name for name in names if "/" not in name])

    def transaction(self) -> Transaction:
        return Transaction(self._server, self)


class Transaction:
    def __init__(self, server: Server, session: Client) -> None:
        self._server, self._session = server, session
        self._steps: list[Step] = []

    def create(self, path: str, value: bytes, ephemeral: bool, sequence: bool) -> None:
        def step(nodes: dict[str, Node], session: Client) -> str:
            created = f"{path}{next(self._server.numbers):010}" if sequence else path
            if created in nodes:
                raise errors.NodeExistsError
            nodes[created] = _node(value, session=session if ephemeral else None)
            return created

        self._steps.append(step)

    def set_data(self, path: str, value: bytes, version: int) -> None:
        def step(nodes: dict[str, Node], session: Client) -> Stat:
            old = _checked(nodes, path, version)
            nodes[path] = _node(value, old.stat.version + 1, old.stat.ctime)
            return nodes[path].stat

        self._steps.append(step)

    def check(self, path: str, version: int) -> None:
        self._steps.append(lambda nodes, session: _checked(nodes, path, version))

    def delete(self, path: str, version: int) -> None:
        def step(nodes: dict[str, Node], session: Client) -> None:
            _checked(nodes, path, version)
            del nodes[path]

        self._steps.append(step)

    def commit_async(self) -> Answer:
        with self._server.lock:
            results = self._server.commit(self._session, self._steps)
        return Answer(errors.ConnectionLoss() if self._session.loses_answers else results)


def _node(
    data: bytes, version: int = 0, created: float | None = None, session: Client | None = None
) -> Node:
    now = time.time() * 1000
    return Node(data, Stat(version, now if created is None else created, now), session)


def _checked(nodes: dict[str, Node], path: str, version: int) -> Node:
    if path not in nodes:
        raise errors.NoNodeError
    if version not in (-1, nodes[path].stat.version):
        raise errors.BadVersionError
    return nodes[path]
