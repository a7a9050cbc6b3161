"""After an error in the loop: what is taken back, and what is saved of that which still arrives.

The scheduler's part is over then, for it may have been interrupted anywhere; the next run reads
from the records where things stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wbengine import invocation as calls
from wbengine import states
from wbengine.runtime import lifecycle as lifecycle_module
from wbengine.runtime.inbox import Arrival, Withdrawn
from wbengine.runtime.maps import is_item

__all__ = ["Collected", "collect"]


class Collected(NamedTuple):
    """How many outcomes of atoms there were, and how many of them failures."""

    completed: int
    failed: int


def collect(lifecycle: lifecycle_module.Lifecycle, arrivals: Iterable[Arrival]) -> Collected:
    """Store the outcomes that arrived too late to be acted upon."""
    completed = failed = 0
    for item in arrivals:
        if isinstance(item, Withdrawn):
            for call in item:
                lifecycle.give_back(call.node)
        elif item is not None:
            call, outcome = item
            if calls.interrupted(outcome):
                continue  # the next run begins it again
            if is_item(call):
                ended = lifecycle.maps.finish(call, outcome)
                if ended is None:
                    continue
                call, outcome = ended
            failed += lifecycle.finish(call, outcome) == states.FAILURE
            completed += 1
    for node in list(lifecycle.maps.running):
        if not lifecycle.maps.drop(node):
            lifecycle.give_back(node)
    return Collected(completed, failed)
