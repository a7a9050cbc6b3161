"""How a run comes to an end that was not meant: nothing more starts, or everything is given up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

from wbengine import _clock
from wbengine import invocation as calls
from wbengine.runtime import lifecycle as lifecycle_module
from wbengine.runtime import plan as plan_module
from wbengine.runtime import retry_decisions
from wbengine.runtime import scheduler as scheduler_module
from wbengine.runtime import timers as timers_module
from wbengine.runtime.brake import Brake
from wbengine.runtime.cancelling import Cancelling, Wish, is_willing
from wbengine.runtime.figures import Figures
from wbengine.runtime.giving_up import DEADLINE, GivenUp
from wbengine.runtime.inbox import Inbox
from wbengine.runtime.maps import is_item

__all__ = ["Ending"]


class Ending:
    """What a run has begun, and how it is stopped, or given up; one part of `Machine`.

    Given up, because time was up or somebody cancelled: nothing more is executed, what waits to be
    started is taken back, and everything is reverted.
    """

    def __init__(
        self,
        plan: plan_module.Plan,
        scheduler: scheduler_module.Scheduler,
        lifecycle: lifecycle_module.Lifecycle,
        executor: calls.TaskExecutor,
        inbox: Inbox,
        clock: _clock.Clock,
        *,
        never_resolve: bool,
    ) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._maps = lifecycle.maps
        self._executor = executor
        self._inbox = inbox
        self._clock = clock
        self._never_resolve = never_resolve
        # Only if something waits for a time.
        self._timers: timers_module.Timers | None = None
        self._cancelling = Cancelling(executor)
        self._flying = self._cancelling.flying
        #: How to stop it, for any thread.
        self.brake = Brake(executor, inbox, self._cancelling)
        # A failure was kept as it is, or a revert failed: what is left must not go on.
        self._broken = False
        # What this turn began, until it is handed to the executor: the calls, and all their nodes.
        self._begun: list[lifecycle_module.Call] = []
        self._beginning: list[int] = []
        # What of a turn was not handed to an executor yet.
        self._unsent: deque[lifecycle_module.Call] = deque()
        self.figures = Figures()
        #: Why what was unfinished was given up, if it was.
        self.given_up: GivenUp | None = None

    def _overdue(self) -> bool:
        return self._timers is not None and self._clock.monotonic() >= self._timers.deadline

    def _expire(self) -> None:
        """If time is up, give up what is unfinished."""
        if self._timers is None or not self._overdue():
            return
        self._timers.deadline = math.inf
        if not (self._broken or self._scheduler.done):
            self._give_up(DEADLINE)

    def _heed(self) -> bool:
        """Do what those who cancelled wish; returns whether there were any.

        Too late is who wishes for the end of what has ended.
        """
        wishes = self.brake.wishes
        heard = bool(wishes)
        while wishes:
            wish = wishes[0]  # nothing starts before it is out
            if self._may_grant(wish):
                if not self._broken:
                    self._give_up(GivenUp(True, wish.reason))
                self._cancelling.granted.append(wish)
                for call in self._executor.withdraw():
                    self._give_back(call)
                self._cancelling.cancel(self._cancelling.meant(wish))
            self.brake.granted()
        return heard

    def _may_grant(self, wish: Wish) -> bool:
        scheduler = self._scheduler
        if scheduler.done and not scheduler.halted:
            return False
        return wish.nodes is None or not all(map(scheduler.ended, wish.nodes))

    def _give_up(self, why: GivenUp) -> None:
        if self._never_resolve:
            self.given_up = why
            self._stop()
            return
        changes = self._scheduler.apply(retry_decisions.everything(self._plan))
        # No changes: everything is being reverted anyway, for a reason of its own.
        if changes:
            self.given_up = why
            self._lifecycle.give_up(changes, why, self._clock.time())
            self._maps.stop(why)
            for call in self._executor.withdraw():
                self._give_back(call)
            self._end_early(range(len(self._plan)))

    def _end_early(self, scope: range) -> None:
        """A scope is being undone: cancel what of it is under way, as far as that says so itself
        (`Task.cancel_on_revert`).
        """
        if self._maps.running:
            self._maps.undo(scope)
        found = [call for call in self._cancelling.willing if call.node in scope]
        if self._unsent and self._executor.immediate:  # in the midst of a turn
            found += [call for call in self._unsent if is_willing(call) and call.node in scope]
        if found:
            self._cancelling.undo(found)

    def _end_late(self, tasks: Collection[calls.Invocation], late: list[calls.Invocation]) -> None:
        """What an earlier run had begun is about to be handed out, and what it is part of is being
        undone: add to `late` what of it is to be cancelled then.

        Where tasks run in this very thread, those have to be told before.
        """
        undoes = self._scheduler.undoes
        found = [call for call in tasks if is_willing(call) and undoes(call.node)]
        if self._executor.immediate:
            early = [call for call in {*found, *late} if call.recovered]
            self._cancelling.ending.update(call.node for call in found)
            self._cancelling.cancel(early)
            late.clear()
        else:
            self._cancelling.ending.update(call.node for call in found)
            late += found

    def _refuse(
        self, tasks: list[calls.Invocation]
    ) -> tuple[list[calls.Invocation], list[calls.Invocation]]:
        """Let no execution start that somebody cancelled; what an earlier run may have under way
        has to be found, and then is to end.

        Returns what is to be handed out, and what of it is to be cancelled then.
        """
        wanted, late = [], []
        for call in tasks:
            wish = self._cancelling.unwanted(call)
            if wish is None or call.recovered:
                wanted.append(call)
                late += [] if wish is None else [call]
            else:
                self._inbox.put((call, self._cancelling.refusal(call, wish)))
        return wanted, late

    def _stop(self) -> None:
        self._broken = True
        self._stop_starting()

    def _stop_starting(self) -> None:
        if not self._scheduler.halted:
            self._scheduler.halt()
            self._maps.halt()
        begun, self._begun, self._beginning = self._begun, [], []
        for call in [*begun, *self._executor.withdraw()]:
            self._give_back(call)

    def _give_back(self, call: lifecycle_module.Call) -> None:
        if isinstance(call, calls.Invocation):
            self._flying.discard(call)
            self._cancelling.willing.discard(call)
        if is_item(call):
            self._maps.give_back(call)
            return
        kept = self._lifecycle.give_back(call.node)
        self._scheduler.give_back(call.node, kept)
        self.figures.withdrawn += 1
