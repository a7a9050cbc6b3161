"""The life of a worker process, as it tells of it in its beats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["BUSY", "DEAD", "DRAINING", "IDLE", "STARTED", "STATES", "SUSPENDED", "Life"]

#: It was born, and does not take requests yet.
STARTED: Final = "started"
IDLE: Final = "idle"
BUSY: Final = "busy"
#: It takes nothing new until it is told to resume.
SUSPENDED: Final = "suspended"
#: It takes nothing new, finishes what runs, and then ends.
DRAINING: Final = "draining"
DEAD: Final = "dead"

STATES: Final = frozenset((STARTED, IDLE, BUSY, SUSPENDED, DRAINING, DEAD))


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of one worker process.

    Moments are unix seconds on the worker's clock, `working` is seconds: the sum of the runtimes of
    all tasks that ended.  `current` holds `(request id, task name)` of what runs.
    """

    state: str = STARTED
    birth: float | None = None
    shutdown_requested: float | None = None
    death: float | None = None
    successes: int = 0
    failures: int = 0
    working: float = 0.0
    current: tuple[tuple[str, str], ...] = ()

    def to_header(self) -> dict[str, Any]:
        """What travels in the header `wbe-life`: plain JSON, without what is as by default."""
        found: dict[str, Any] = {"state": self.state}
        for name in ("birth", "shutdown_requested", "death", "successes", "failures", "working"):
            value = getattr(self, name)
            if value:
                found[name] = value
        if self.current:
            found["current"] = [list(pair) for pair in self.current]
        return found

    @classmethod
    def from_header(cls, data: Any) -> Life | None:
        """Read what somebody sent; None when it is not that."""
        if not isinstance(data, Mapping) or data.get("state") not in STATES:
            return None
        return cls(data["state"])
