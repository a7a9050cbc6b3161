"""What of one run somebody wants to end, and what of it is under way.

`Wish` says the former.  Whoever cancels, in whatever thread, leaves a wish where the run loop finds
it (see `Brake`), and tells at once what is under way; the loop does the rest when it comes by.
What is handed out is noted before the loop looks for wishes: so one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from wbengine import invocation as calls
from wbengine._core.giving_up import GivenUp

__all__ = ["Cancelling", "Wish"]


class Wish(NamedTuple):
    """These atoms are to end (None: all of them), and so is their flow."""

    nodes: Collection[int] | None
    reason: str | None = None

    def covers(self, call: calls.Invocation) -> bool:
        """Whether it is about what `call` does: whatever is being undone, goes on."""
        return call.action == calls.EXECUTE and (self.nodes is None or call.node in self.nodes)


class Cancelling:
    """The calls that are under way, and the wishes that were granted."""

    __slots__ = ("_executor", "flying", "granted")

    def __init__(self, executor: calls.TaskExecutor) -> None:
        self._executor = executor
        #: Handed out, and not back yet.
        self.flying: set[calls.Invocation] = set()
        #: Also for what is handed out later: what an earlier run left has to come to an end.
        self.granted: list[Wish] = []

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

    def unwanted(self, call: calls.Invocation) -> Wish | None:
        """The wish that a call about to be handed out is against."""
        return next((wish for wish in self.granted if wish.covers(call)), None)

    def refusal(self, call: calls.Invocation, wish: Wish) -> calls.Outcome:
        """The outcome of a call that is not handed out any more."""
        given_up = GivenUp(True, wish.reason)
        return calls.Outcome(given_up.failure(f"Task {call.task.name!r}"))
