"""Where systems are measured: private brokers and folders, with a fresh place for each driver."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tests.support import brokers, servers
from tools import _bootstrap
from tools.benching import processes

_MAKERS = {"redis": "redis", "amqp": "rabbitmq"}


class Places:
    """The brokers that some media need, until `close`."""

    def __init__(self, media: Collection[str], *, folder: str | None = None, log: bool = False):
        """`folder`: where folders are made; `log`: whether Redis is to keep a log of its writes."""
        self._folder = folder
        self._until = contextlib.ExitStack()
        self._brokers: dict[str, brokers.Broker] = {}
        #: Media that are not to be had, and why.
        self.missing: dict[str, str] = {}
        # Peers whose results cannot come over RabbitMQ keep them in Redis.
        wanted = {"redis", "amqp"} if "amqp" in media else {"redis"} & {*media}
        for medium in sorted(wanted):
            settings = {"appendonly": "yes" if log else "no"} if medium == "redis" else {}
            _bootstrap.say(f"starting {_MAKERS[medium]}")
            try:
                made = getattr(brokers, _MAKERS[medium])(**settings)
                self._brokers[medium] = self._until.enter_context(made)
            except servers.ServerMissing as error:
                self.missing[medium] = str(error)
                _bootstrap.say(f"not measured: {error}")

    @property
    def versions(self) -> dict[str, str]:
        return {medium: broker.version for medium, broker in self._brokers.items()}

    @property
    def processor(self) -> float:
        """Seconds that all brokers have taken so far."""
        trees = [processes.tree(broker.pid) for broker in self._brokers.values()]
        return processes.processor(pid for tree in trees for pid in tree)

    @contextlib.contextmanager
    def fresh(self, medium: str) -> Iterator[dict[str, Any]]:
        """What a driver is told; the place is gone afterwards."""
        with contextlib.ExitStack() as until:
            made = tempfile.TemporaryDirectory(
                prefix="wbengine-bench-", dir=self._folder, ignore_cleanup_errors=True
            )
            told = {"medium": medium, "folder": until.enter_context(made), "slots": 4}
            for word, kind in (("url", medium), ("results", "redis")):
                if kind in self._brokers and medium in _MAKERS:
                    told[word] = str(until.enter_context(self._brokers[kind].place()))
            yield told

    def close(self) -> None:
        self._until.close()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def lines(folder: str) -> int:
    """How many of them were logged in the place of a driver."""
    return sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("*.log"))


def logs(folder: str) -> str:
    """The end of what was logged in the place of a driver."""
    lines: list[str] = []
    for path in sorted(Path(folder).glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        lines += [f"  {path.name}: {line[:200]}" for line in text]
    return "\n".join(lines)
