"""The queues of a job board in Redis: what waits in them, which conductors serve, and pauses."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine._redis.lua_scripts import Step
from wbengine.jobs import _queues
from wbengine.jobs.backends import _redis_scripts

__all__ = ["RedisJobQueues", "decoded"]

_PAGE_SIZE: Final = 1024


@dataclass
class _KeyCounts:
    waiting: int = 0
    running: int = 0
    oldest: float | None = None


class RedisJobQueues(_queues.BaseJobQueues):
    """The queues of a board in Redis.

    :param run: runs a script of the board and returns its result, and whether an earlier attempt
        may have run it, too. It raises JobFailure if the board cannot be
        reached.
    """

    def __init__(self, run: Callable[[Step[Any]], tuple[Any, bool]]) -> None:
        self._run = run

    def _rows(self) -> Mapping[str, _queues.QueueRow]:
        (now, pauses, served), _ = self._run(_redis_scripts.queues())
        reports = {decoded(name): float(at) for name, at in _pairs(served)}
        notes = {decoded(name): decoded(pause) for name, pause in _pairs(pauses)}
        rows = {}
        for name in {*reports, *notes}:
            age = (now - reports.get(name, 0.0)) / 1000
            paused_at, _, note = notes.get(name, "").partition(" ")
            reason, by = json.loads(note) if note else (None, None)
            rows[name] = _queues.QueueRow(
                int(paused_at) / 1000 if paused_at else None, by, reason, age
            )
        return rows

    def _counts(self) -> Mapping[str, _queues.QueueCounts]:
        keys_of_queues = defaultdict[str, list[_KeyCounts]](list)
        for (queue, _), counts in self._read_places().items():
            keys_of_queues[queue].append(counts)
        return {
            queue: _queues.QueueCounts(
                sum(key.waiting for key in keys),
                0,
                sum(key.running for key in keys),
                len(keys),
                min((key.oldest for key in keys if key.oldest is not None), default=None),
            )
            for queue, keys in keys_of_queues.items()
        }

    def _keys(self, queue: str, limit: int) -> list[_queues.JobKey]:
        keys = [
            _queues.JobKey(key, counts.waiting, 0, counts.running, counts.oldest)
            for (of_queue, key), counts in self._read_places().items()
            if of_queue == queue
        ]
        return sorted(keys, key=lambda key: (-key.waiting, key.key))[:limit]

    def _read_places(self) -> Mapping[tuple[str, str], _KeyCounts]:
        """Return the numbers of all jobs by queue and key. The server reads them in pages."""
        counts = defaultdict[tuple[str, str], _KeyCounts](_KeyCounts)
        after, page = "-inf", [()] * _PAGE_SIZE
        while len(page) == _PAGE_SIZE:
            page, _ = self._run(_redis_scripts.places(after, _PAGE_SIZE))
            for _, queue, key, is_claimed, posted in page:
                of_key = counts[decoded(queue), decoded(key)]
                if is_claimed:
                    of_key.running += 1
                    continue
                of_key.waiting += 1
                posted_at = int(posted) / 1000
                of_key.oldest = min(posted_at, of_key.oldest or posted_at)
            if page:
                after = f"({decoded(page[-1][0])}"
        return counts

    def _pause(self, name: str, reason: str | None, by: str | None) -> None:
        self._run(_redis_scripts.pause(name, json.dumps([reason, by])))

    def _resume(self, name: str) -> list[str] | None:
        paused, is_repeated = self._run(_redis_scripts.resume(name))
        # The first attempt may have ended the pause without an answer.
        return None if paused is None or is_repeated else [decoded(each) for each in paused]

    def report(self, names: Iterable[str]) -> None:
        self._run(_redis_scripts.report(sorted(names)))


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def decoded(value: Any) -> str:
    """Return a value of the server as str, independent of the client's decoding."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)
