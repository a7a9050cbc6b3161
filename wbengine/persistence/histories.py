"""What became of a flow, and when: the changes of its state."""

from __future__ import annotations

from typing import Final, NamedTuple

from wbengine import states

__all__ = ["MOST", "Change", "error", "keep"]

#: So many changes are remembered.
MOST: Final = 50

#: `why` has at most so many characters.
_LONGEST: Final = 200

_FAILED: Final = frozenset({states.FAILURE, states.REVERTED})


class Change(NamedTuple):
    """A flow entered `state` at a moment (unix seconds, on the clock of whoever ran it).

    `why` is told in one line, where there is more to tell than the state: what failed, who
    suspended it.  It is for people, and may tell secrets.
    """

    state: str
    at: float
    why: str | None = None


def keep(history: tuple[Change, ...], latest: Change) -> tuple[Change, ...]:
    """`history` with one change more."""
    if latest.why is not None:
        told = " ".join(latest.why[: 4 * _LONGEST].split())
        told = told if len(told) <= _LONGEST else f"{told[: _LONGEST - 3]}..."
        latest = latest._replace(why=told or None)
    return (*history, latest)[-MOST:]


def error(state: str | None, history: tuple[Change, ...]) -> str | None:
    """Why a flow is in a state in which something failed."""
    if state not in _FAILED or not history or history[-1].state != state:
        return None
    return history[-1].why
