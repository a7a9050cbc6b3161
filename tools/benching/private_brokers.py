"""Private brokers and folders of the benchmark, with a new place for each driver."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import brokers, servers
from tools import _bootstrap
from tools.benching import processes
from tools.benching.systems import DATABASES

_MAKERS = {"redis": "redis", "amqp": "rabbitmq"}


class PrivateBrokers:
    """The brokers of some media, until `close`."""

    def __init__(self, media: Collection[str], *, folder: str | None = None, log: bool = False):
        """Start the brokers.

        :param folder: parent of the temporary folders.
        :param log: whether Redis writes its append-only file.
        """
        self._folder = folder
        self._until = contextlib.ExitStack()
        self._brokers: dict[str, brokers.Broker] = {}
        self._databases: dict[str, servers.Server] = {}
        self._pids: list[int] = []
        #: Unavailable media -> the reason.
        self.missing: dict[str, str] = {}
        for kind in (kind for kind in DATABASES if kind in media):
            try:
                kept = self._until.enter_context(servers.keeping(kind))
                self._databases[kind] = servers.Server.of(kind, kept.details)
                self._pids.append(kept.details["pid"])
            except servers.ServerMissing as error:
                self.missing[kind] = str(error)
        # Systems that cannot send results through RabbitMQ store them in Redis.
        needed = {"redis", "amqp"} if "amqp" in media else {"redis"} & {*media}
        for medium in sorted(needed):
            settings = {"appendonly": "yes" if log else "no"} if medium == "redis" else {}
            _bootstrap.say(f"starting {_MAKERS[medium]}")
            try:
                broker = getattr(brokers, _MAKERS[medium])(**settings)
                self._brokers[medium] = self._until.enter_context(broker)
            except servers.ServerMissing as error:
                self.missing[medium] = str(error)
                _bootstrap.say(f"not measured: {error}")

    @property
    def versions(self) -> dict[str, str]:
        return {kind: server.version for kind, server in (self._brokers | self._databases).items()}

    @property
    def processor(self) -> float:
        """Processor time of all brokers in seconds."""
        pids = [*self._pids, *(broker.pid for broker in self._brokers.values())]
        trees = [processes.tree(pid) for pid in pids]
        return processes.processor(pid for tree in trees for pid in tree)

    def transactions(self, place: Mapping[str, Any]) -> int:
        """Return the number of transactions in the PostgreSQL database of a place, otherwise 0."""
        if place["medium"] != "postgresql":
            return 0
        name = place["url"].rpartition("/")[2]
        ((count,),) = self._databases["postgresql"].execute(
            f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{name}'"
        )
        return int(count)

    @contextlib.contextmanager
    def fresh(self, medium: str) -> Iterator[dict[str, Any]]:
        """Yield the arguments of a driver. Its folder is deleted afterwards."""
        with contextlib.ExitStack() as until:
            temporary_folder = tempfile.TemporaryDirectory(
                prefix="wbengine-bench-", dir=self._folder, ignore_cleanup_errors=True
            )
            arguments = {
                "medium": medium,
                "folder": until.enter_context(temporary_folder),
                "slots": 4,
            }
            for word, kind in (("url", medium), ("results", "redis")):
                if kind in self._brokers and medium in _MAKERS:
                    arguments[word] = str(until.enter_context(self._brokers[kind].place()))
            if medium in self._databases:
                arguments["url"] = until.enter_context(self._databases[medium].database())
            yield arguments

    def close(self) -> None:
        self._until.close()

    def __enter__(self) -> PrivateBrokers:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def lines(folder: str) -> int:
    """Return the number of log lines in the folder of a driver."""
    return sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("*.log"))


def logs(folder: str) -> str:
    """Return the last log lines in the folder of a driver."""
    lines: list[str] = []
    for path in sorted(Path(folder).glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        lines += [f"  {path.name}: {line[:200]}" for line in text]
    return "\n".join(lines)
