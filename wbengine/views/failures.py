"""A failure as people look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine.types import failure as ft
from wbengine.views import masking, words

__all__ = ["FailureView", "of"]


@dataclass(frozen=True, slots=True)
class FailureView:
    """What an atom failed with, where and when; its secrets are masked.

    `type` is the full name of the exception's class, `traceback` the lines it went through (on the
    worker, if it ran there).  `causes` are what was behind it, the nearest first, and have none of
    their own.  `action` is 'execute' or 'revert'; `at` in unix seconds.  `item` is the index of the
    item of a Map.  `executions` and `reversions` count those of the atom up to this attempt.
    """

    type: str
    message: str
    traceback: str
    causes: tuple[FailureView, ...] = ()
    atom: str | None = None
    uuid: str | None = None
    action: str = "execute"
    worker: str | None = None
    attempt: int = 0
    at: float | None = None
    item: int | None = None
    executions: int = 0
    reversions: int = 0

    @property
    def line(self) -> str:
        """Its type, without the module, and the first line of its message; of a Map, the index of
        the item."""
        name = self.type.rpartition(".")[2]
        said = next(iter(self.message.splitlines()), "")
        item = "" if self.item is None else f"item {self.item}: "
        return f"{item}{name}: {said}" if said else f"{item}{name}"

    @property
    def text(self) -> str:
        """All of it, as Python tells it: the first cause first."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        found: list[str] = []
        for each in reversed((self, *self.causes)):
            if found:
                found += ["", "It was behind the following exception:", ""]
            if each.traceback:
                found += ["Traceback (most recent call last):", each.traceback.rstrip("\n")]
            found.append(f"{each.type}: {each.message}" if each.message else each.type)
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
            "causes": [
                {"type": cause.type, "message": cause.message, "traceback": cause.traceback}
                for cause in self.causes
            ],
            "atom": self.atom,
            "uuid": self.uuid,
            "action": self.action,
            "worker": self.worker,
            "attempt": self.attempt,
            "executions": self.executions,
            "reversions": self.reversions,
            "at": words.iso(self.at),
            "item": self.item,
        }


def of(failure: ft.Failure, masker: masking.Masker, **where: Any) -> FailureView:
    """Look at `failure`; `where` are the fields of the view that it does not know itself."""
    causes = tuple(_one(cause, masker) for cause in failure.causes)
    return _one(failure, masker, causes=causes, **where)


def _one(failure: ft.Failure, masker: masking.Masker, **where: Any) -> FailureView:
    return FailureView(
        type=masker.text(next(iter(failure), "Exception")),
        message=masker.text(failure.exception_str),
        traceback=masker.text(failure.traceback_str),
        **where,
    )
