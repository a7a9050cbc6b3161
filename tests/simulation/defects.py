"""Defects that the simulation must find, planted temporarily in the real classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.seams import ledgers, server, tracker

#: `(class, name, make)`: `make(original)` returns the replacement.
Patch = tuple[Any, str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Defect:
    """`kind` is the kind of schedules that reveal the defect: "ledger", "none" or "any"."""

    text: str
    kind: str
    patches: tuple[Patch, ...]


@contextmanager
def planted(name: str) -> Iterator[Defect]:
    """Plant a defect during the context."""
    with put_in(DEFECTS[name].patches):
        yield DEFECTS[name]


@contextmanager
def put_in(patches: tuple[Patch, ...]) -> Iterator[None]:
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, what, made in patches:
            base = next(cls for cls in owner.__mro__ if what in cls.__dict__)
            before.append((base, what, base.__dict__[what]))
            setattr(base, what, made(base.__dict__[what]))
        yield
    finally:
        for base, what, old in before:
            setattr(base, what, old)


def _twice_claimed(before: Any) -> Any:
    def claim(self: Any, id: str, epoch: int, holder: str) -> ledgers.Claim:
        found: ledgers.Claim = before(self, id, epoch, holder)
        if found.verdict == ledgers.HELD:
            return ledgers.Claim(ledgers.GRANTED, epoch, None, holder)
        return found

    return claim


def _claims_any_epoch(before: Any) -> Any:
    def claim(self: Any, id: str, epoch: int, holder: str) -> ledgers.Claim:
        row = self._rows.get(id)
        return before(self, id, epoch if row is None else row.epoch, holder)  # type: ignore[no-any-return]

    return claim


#: Description of each defect, and the kind of schedules that reveal it.
_WRONG: Final = {
    # Defects that must be found.
    "epoch-check": ("answers of any epoch count", "none"),
    "missing-row": ("a request without a row is run", "ledger"),
    "running-after-success": ("RUNNING is taken after the end", "any"),
    "time-alone": ("what is not heard of is sent again in time", "any"),
    # Other defects.
    "same-epoch": ("what is sent again keeps its number", "none"),
    "ack-first": ("requests are acknowledged before they are claimed", "any"),
    "once-idle": ("nobody need have reported a free slot", "any"),
    "believe-lost": ("LOST is believed at once", "none"),
    "no-most": ("a request is sent again without end", "any"),
    "anything-twice": ("any task may be run twice", "ledger"),
    "redelivered-runs": ("what was given to another is run", "none"),
    "twice-claimed": ("a claimed row is claimed again", "ledger"),
    "claims-any-epoch": ("a claim of an old epoch is granted", "ledger"),
    "no-drop": ("rows are not removed", "ledger"),
    "no-refill": ("the backlog waits for ever", "any"),
    "never-asks": ("nobody is asked", "none"),
    "revoke-is-enough": ("what is claimed times out", "ledger"),
    "every-end-counts": ("a second end changes the first", "any"),
    "silence-counts-always": (
        "an engine that slept, or hears nothing, takes workers for lost",
        "any",
    ),
}
_PATCHES: Final[dict[str, tuple[Patch, ...]]] = {
    **tracker.DEFECTS,
    **server.DEFECTS,
    "twice-claimed": ((ledgers.InMemory, "_claim", _twice_claimed),),
    "claims-any-epoch": ((ledgers.InMemory, "_claim", _claims_any_epoch),),
}
DEFECTS: Final[dict[str, Defect]] = {
    name: Defect(text, kind, _PATCHES[name]) for name, (text, kind) in _WRONG.items()
}
FOUR: Final = ("epoch-check", "missing-row", "running-after-success", "time-alone")
