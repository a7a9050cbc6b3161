"""What of one run somebody wants to end, and what of it is under way.

`Wish` says the former.  Whoever cancels, in whatever thread, leaves a wish where the run loop finds
it (see `Brake`), and tells at once what is under way; the loop does the rest when it comes by.
What is handed out is noted before the loop looks for wishes: so one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeGuard

from wbengine import exceptions
from wbengine import invocation as calls
from wbengine.runtime.giving_up import GivenUp
from wbengine.types import failure as ft

__all__ = ["Cancelling", "Wish", "is_willing"]


class Wish(NamedTuple):
    """These atoms are to end (None: all of them), and so is their flow."""

    nodes: Collection[int] | None
    reason: str | None = None

    def covers(self, call: calls.Invocation) -> bool:
        """Whether it is about what `call` does: whatever is being undone, goes on."""
        return call.action == calls.EXECUTE and (self.nodes is None or call.node in self.nodes)


def is_willing(call: object) -> TypeGuard[calls.Invocation]:
    """Whether `call` ends early where it is undone."""
    return (
        isinstance(call, calls.Invocation)
        and call.task.cancel_on_revert
        and call.action == calls.EXECUTE
    )


class Cancelling:
    """The calls that are under way, and the wishes that were granted."""

    __slots__ = ("_executor", "ending", "flying", "granted", "willing")

    def __init__(self, executor: calls.TaskExecutor) -> None:
        self._executor = executor
        #: Handed out, and not back yet.
        self.flying: set[calls.Invocation] = set()
        #: Also for what is handed out later: what an earlier run left has to come to an end.
        self.granted: list[Wish] = []
        #: What of it ends early where it is undone (`Task.cancel_on_revert`).
        self.willing: set[calls.Invocation] = set()
        #: The nodes of what was told so, until they run again.
        self.ending: set[int] = set()

    def meant(self, wish: Wish) -> set[calls.Invocation]:
        """What is under way and meant by `wish`; from any thread."""
        return {call for call in self.flying.copy() if wish.covers(call)}

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        """Let calls know that they are to end; those not started do not start any more."""
        found = list(invocations)
        for call in found:
            call.cancelled = True
        if found:
            self._executor.cancel(found)

    def undo(self, found: Iterable[calls.Invocation]) -> None:
        """Let these end early, for what they are part of is being undone; idempotent."""
        told = [call for call in found if not call.cancelled]
        self.ending.update(call.node for call in told)
        self.cancel(told)

    def willing_of(self, node: int) -> list[calls.Invocation]:
        """What of one node ends early; of a Map, the items that are under way."""
        return [call for call in self.willing if call.node == node]

    def expected(self, node: int, failure: ft.Failure) -> bool:
        """Whether an atom's failure says no more than that it was told to end early."""
        return node in self.ending and failure.check(exceptions.Cancelled) is not None

    def unwanted(self, call: calls.Invocation) -> Wish | None:
        """The wish that a call about to be handed out is against."""
        return next((wish for wish in self.granted if wish.covers(call)), None)

    def refusal(self, call: calls.Invocation, wish: Wish) -> calls.Outcome:
        """The outcome of a call that is not handed out any more."""
        given_up = GivenUp(True, wish.reason)
        return calls.Outcome(given_up.failure(f"Task {call.task.name!r}"))
