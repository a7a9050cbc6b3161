"""Task for random flows whose failures depend on numbers, equally on every kind of engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wbengine import task

#: First word of the lines that a task notes.
BODY = "body"


def draw(*what: Any) -> float:
    """Return a number from 0 to 1 that is the same for the same words in any process."""
    return zlib.crc32("/".join(map(str, what)).encode()) / 2**32


def note(journal: str, *words: Any) -> None:
    """Append a line to a journal that several processes write."""
    with Path(journal).open("ab", buffering=0) as stream:
        stream.write(json.dumps(words).encode() + b"\n")


class Fated(task.Task):
    """Task that fails depending on a number, which is drawn for each execution.

    A folder counts the executions. Without one, the number depends on the attempts of the enclosing
    retries. After a few attempts failures are rare, so that flows make progress. With a `journal`,
    the task notes its calls there, each of which takes up to `pace` seconds.
    """

    def execute(
        self,
        seed: int,
        failing: float,
        sticking: float,
        folder: str,
        journal: str = "",
        pace: float = 0.0,
        seen: str | None = None,
        **tries: int,
    ) -> Any:
        with self._noted("execute", journal):
            time.sleep(pace * draw(self.name, "pace"))
            return self._execute(seed, failing, folder, seen, tries)

    def revert(
        self, seed: int, sticking: float, folder: str, result: Any, journal: str = "", **others: Any
    ) -> str:
        with self._noted("revert", journal):
            count = self._count("revert", folder) if folder else None
            if draw(seed, self.name, "revert", count) < sticking:
                raise LookupError(f"{self.name} stays")
            return f"{result[0] if isinstance(result, list | tuple) else 'failed'} is undone"

    def shaped(self, value: str) -> Any:
        return value, value

    def _execute(
        self, seed: int, failing: float, folder: str, seen: str | None, tries: dict[str, int]
    ) -> Any:
        count = self._count("execute", folder) if folder else sum(tries.values()) + 1
        number = count if folder else sorted(tries.items())
        if draw(seed, self.name, "execute", number) < (failing if count < 3 else failing / 4):
            raise RuntimeError(f"{self.name} fails at {number}")
        return self.shaped(f"{self.name} {number} {draw(seen):.4f}")

    @contextlib.contextmanager
    def _noted(self, what: str, journal: str) -> Iterator[None]:
        if not journal:
            yield
            return
        request = self.request
        assert request is not None
        who = [BODY, self.name, what, request.id, request.attempt]
        note(journal, *who, "begun")
        try:
            yield
        except Exception:
            note(journal, *who, "failed")
            raise
        note(journal, *who, "ended")

    def _count(self, what: str, folder: str) -> int:
        path = Path(folder, f"{self.name}.{what}")
        with path.open("ab") as stream:
            stream.write(b"x")
            return stream.tell()


class Numbers(Fated):
    """Task that also returns a list of numbers of drawn length."""

    def shaped(self, value: str) -> Any:
        return value, value, list(range(int(5 * draw(value, "numbers"))))


class Awaiting(Fated):
    """Same task with coroutines that yield to others."""

    async def execute(
        self,
        seed: int,
        failing: float,
        sticking: float,
        folder: str,
        journal: str = "",
        pace: float = 0.0,
        seen: str | None = None,
        **tries: int,
    ) -> Any:
        await asyncio.sleep(0)
        return super().execute(seed, failing, sticking, folder, journal, pace, seen, **tries)

    async def revert(  # type: ignore[override]
        self, seed: int, sticking: float, folder: str, result: Any, journal: str = "", **others: Any
    ) -> str:
        await asyncio.sleep(0)
        return super().revert(seed, sticking, folder, result, journal, **others)


class Item(Fated):
    """Task that a Map runs for each number."""

    def execute(
        self,
        number: int,
        seed: int,
        failing: float,
        sticking: float,
        folder: str,
        journal: str = "",
        pace: float = 0.0,
        seen: str | None = None,
        **tries: int,
    ) -> Any:
        value, _ = super().execute(seed, failing, sticking, folder, journal, pace, seen, **tries)
        return f"{value} {number}"
