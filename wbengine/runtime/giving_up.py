"""Why a flow is given up before its end, other than that something failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine.types import failure as ft

__all__ = ["DEADLINE", "KEYS", "GivenUp", "recorded"]

_DEADLINE: Final = "deadline_exceeded"
_CANCELLED: Final = "cancelled"

#: Where a flow's `meta` says that, and when (unix seconds), it was given up.
KEYS: Final = (_DEADLINE, _CANCELLED)


class GivenUp(NamedTuple):
    """Time was up, or somebody asked for the flow to end (`cancelled`), for a `reason`, perhaps."""

    cancelled: bool
    reason: str | None = None

    @property
    def key(self) -> str:
        return _CANCELLED if self.cancelled else _DEADLINE

    def record(self, now: float) -> Any:
        """What a flow's `meta` says under `key`."""
        return {"at": now, "reason": self.reason} if self.cancelled else now

    def error(self, what: str, cause: BaseException | None = None) -> exceptions.ExecutionFailure:
        """What is raised about it, after `what` was given up."""
        if self.cancelled:
            told = f"{what} was cancelled{f': {self.reason}' if self.reason else ''}"
            return exceptions.Cancelled(told, cause)
        return exceptions.DeadlineExceeded(what, cause)

    def failure(self, what: str) -> ft.Failure:
        """`error`, as what an atom fails with."""
        return ft.Failure.from_exception(self.error(what))


DEADLINE: Final = GivenUp(False)


def recorded(meta: Mapping[str, Any]) -> GivenUp | None:
    """Why an earlier run gave the flow up, if it did."""
    found = meta.get(_CANCELLED)
    if found is not None:
        return GivenUp(True, found.get("reason") if isinstance(found, Mapping) else None)
    return DEADLINE if _DEADLINE in meta else None
