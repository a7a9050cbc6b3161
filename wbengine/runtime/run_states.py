"""The table of the run loop: which state follows which, and upon what.

The states are TaskFlow's::

    UNDEFINED -> RESUMING -> SCHEDULING -> WAITING -> ANALYZING -> SCHEDULING ...
                                                               -> GAME_OVER -> an end state
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from automaton import machines

from wbengine import states

__all__ = [
    "ANALYZE", "END_STATES", "FINISH", "META_STATES", "NEXT", "SCHEDULE", "START", "WAIT",
    "Reaction", "machine",
]  # fmt: skip

#: States nobody outside sees.
META_STATES: Final = frozenset({states.UNDEFINED, states.GAME_OVER})
END_STATES: Final = (states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED)

START: Final = "start"
SCHEDULE: Final = "schedule"
WAIT: Final = "wait"
ANALYZE: Final = "analyze"
FINISH: Final = "finish"

#: What is done in a state; returns the event that leads on.
Reaction = Callable[[], str]

_TRANSITIONS: Final = (
    (states.UNDEFINED, states.RESUMING, START),
    (states.RESUMING, states.SCHEDULING, SCHEDULE),
    (states.SCHEDULING, states.WAITING, WAIT),
    (states.WAITING, states.ANALYZING, ANALYZE),
    (states.ANALYZING, states.SCHEDULING, SCHEDULE),
    (states.ANALYZING, states.WAITING, WAIT),
    (states.ANALYZING, states.GAME_OVER, FINISH),
    # The event that leads to an end state is called like it.
    *((states.GAME_OVER, end, end) for end in END_STATES),
)


def machine() -> machines.FiniteMachine:
    """Make the state machine."""
    fsm = machines.FiniteMachine()
    for name in dict.fromkeys(name for start, end, _ in _TRANSITIONS for name in (start, end)):
        fsm.add_state(name, terminal=name in END_STATES)
    for start, end, event in _TRANSITIONS:
        fsm.add_transition(start, end, event)
    fsm.default_start_state = states.UNDEFINED
    fsm.freeze()
    return fsm


def _exits() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for start, event, end in machine():
        found.setdefault(start, {})[event] = end
    return found


#: State -> event -> state, read off the machine once: a run then moves by two lookups, which take
#: a tenth of the time.
NEXT: Final[Mapping[str, Mapping[str, str]]] = _exits()
