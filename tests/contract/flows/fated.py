"""One task for all random flows: what becomes of it is a matter of numbers, on every kind alike."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from wbengine import task


def draw(*what: Any) -> float:
    """A number from 0 to 1: the same for the same words, in any process."""
    return zlib.crc32("/".join(map(str, what)).encode()) / 2**32


class Fated(task.Task):
    """Fails when its number says so: each time it is done, it draws another one.

    How often it was done is counted in a folder; without one, the tries of the retries around it
    are what the number depends on.  What was tried a few times seldom fails: flows are to go on.
    """

    def execute(
        self,
        seed: int,
        failing: float,
        sticking: float,
        folder: str,
        seen: str | None = None,
        **tries: int,
    ) -> tuple[str, str]:
        count = self._count("execute", folder) if folder else sum(tries.values()) + 1
        time = count if folder else sorted(tries.items())
        if draw(seed, self.name, "execute", time) < (failing if count < 3 else failing / 4):
            raise RuntimeError(f"{self.name} fails at {time}")
        made = f"{self.name} {time} {draw(seen):.4f}"
        return made, made

    def revert(self, seed: int, sticking: float, folder: str, result: Any, **others: Any) -> str:
        time = self._count("revert", folder) if folder else None
        if draw(seed, self.name, "revert", time) < sticking:
            raise LookupError(f"{self.name} stays")
        return f"{result[0] if isinstance(result, tuple) else 'failed'} is undone"

    def _count(self, what: str, folder: str) -> int:
        path = Path(folder, f"{self.name}.{what}")
        with path.open("ab") as stream:
            stream.write(b"x")
            return stream.tell()
