"""Steps that wait for the ends of child flows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from wbengine import exceptions, states
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._runtime import inbox
from wbengine._runtime.gates import base
from wbengine._runtime.gates.signals_and_sleeps import ReceivedSignals
from wbengine._tasks.child import Child
from wbengine.persistence import models
from wbengine.running import LOCAL
from wbengine.types import failure as ft

__all__ = ["ChildGate", "Children", "End", "Start"]


class Start(NamedTuple):
    """A child flow to start.

    :ivar uuid: uuid of the new flow.
    :ivar step: uuid of the record of the step that waits for it.
    """

    uuid: str
    step: str
    task: Child


class End(NamedTuple):
    """The end of a child flow: its state, and its result or `Failure`."""

    state: str
    value: object


class Children(Protocol):
    """The child flows of one flow. Only the thread of the run uses it.

    All methods may be repeated, also by a later run, with the same effect as one call.
    """

    @property
    def survive_run(self) -> bool:
        """Whether child flows continue if the run of their parent ends."""

    def start(self, starts: Sequence[Start]) -> Mapping[str, ft.Failure]:
        """Start flows that do not exist, and resume those that were suspended with their parent.

        :returns: why flows cannot be started, by uuid.
        """

    def cancel(self, uuid: str, reason: str) -> bool:
        """Cancel a flow. Return False if it does not exist, so that it has no effect."""

    def revert(self, uuid: str, request: str) -> End | None:
        """Revert a flow, and return its end; None as long as the reversion is not over.

        :param request: text that identifies the reversion among all of the flow.
        """

    def end_of(self, uuid: str, task: Child) -> End | None:
        """Return the end of a flow; None if it has not ended, or is to run again."""

    def close(self) -> None:
        """End the work of this process at the end of the run of the parent. Idempotent."""


class ChildGate(base.Gate):
    """Delays the steps of child flows until these flows have ended.

    :param end: called with a call that has ended, and its outcome.
    :param record: returns the record of a call.
    """

    def __init__(
        self,
        children: Children,
        received: ReceivedSignals,
        clock: clocks.Clock,
        end: Callable[[calls.Invocation, calls.Outcome], object],
        record: Callable[[calls.Invocation], models.AtomDetail],
    ) -> None:
        self._children: Final = children
        self._received: Final = received
        self._clock: Final = clock
        self._end: Final = end
        self._record: Final = record
        # By uuid of the child flow.
        self._calls: dict[str, calls.Invocation] = {}
        # Flows whose steps the function of the workflow does not wait for any more.
        self._abandoned: deque[str] = deque()

    @property
    def is_awaiting_signal(self) -> bool:
        return bool(self._calls)

    @property
    def parkable(self) -> int | None:
        return len(self._calls) if self._children.survive_run or not self._calls else None

    @property
    def waiting_calls(self) -> Collection[calls.Invocation] | None:
        return self._calls.values()

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        own = [call for call in tasks if type(call.task) is Child]
        if not own:
            return tasks
        # A flow that has ended must not be started again, also if it was deleted since.
        self._received.load()
        for call in own:
            uuid = self._record(call).meta[models.CHILD]
            self._calls[uuid] = call
            _task_of(call).on_abandoned = lambda uuid=uuid: self._abandon(uuid)
        self._advance(self._record(call).meta[models.CHILD] for call in own)
        admitted = set(own)
        return [call for call in tasks if call not in admitted]

    def _abandon(self, uuid: str) -> None:
        self._abandoned.append(uuid)
        self._received.on_new()

    def on_event(self, event: inbox.Event) -> bool:
        if isinstance(event, inbox.SignalsReceived):
            changed = dict.fromkeys([*_taken(self._received.new_ends), *_taken(self._abandoned)])
            self._advance(uuid for uuid in changed if uuid in self._calls)
        return False

    def _advance(self, uuids: Iterable[str]) -> None:
        """Start, cancel or revert flows, and end the calls whose flows have ended."""
        starts: list[Start] = []
        for uuid in uuids:
            call = self._calls[uuid]
            if call.action == calls.REVERT:
                self._revert(uuid, call)
            elif uuid in self._received.ended_children and self._end_if_over(uuid):
                pass
            elif call.cancellation.cancelled or _task_of(call).is_abandoned:
                self._cancel(uuid, call)
            else:
                starts.append(Start(uuid, self._record(call).uuid, _task_of(call)))
        if starts:
            for uuid, failure in self._children.start(starts).items():
                self._finish(uuid, failure)

    def _end_if_over(self, uuid: str) -> bool:
        end = self._children.end_of(uuid, _task_of(self._calls[uuid]))
        if end is not None:
            self._finish(uuid, end.value)
        return end is not None

    def _cancel(self, uuid: str, call: calls.Invocation) -> None:
        if _task_of(call).is_detached or not self._children.cancel(uuid, "its parent ended"):
            text = f"The wait for child flow {uuid} was cancelled"
            self._finish(uuid, ft.Failure.from_exception(exceptions.Cancelled(text)))

    def _revert(self, uuid: str, call: calls.Invocation) -> None:
        end = self._children.revert(uuid, f"{call.uuid} {call.attempt}")
        if end is None:
            return
        if end.state == states.REVERTED:
            self._finish(uuid, None)
        elif isinstance(call.result, ft.Failure) and end.state == states.UNDEFINED:
            self._finish(uuid, None)  # The flow was never started.
        else:
            self._finish(uuid, end.value)

    def _finish(self, uuid: str, value: object) -> None:
        call = self._calls.pop(uuid)
        record, now = self._record(call), self._clock.time()
        wait = record.waits_for
        record.meta.pop(models.WAITS_FOR, None)
        since = now if wait is None else wait.since
        self._end(call, calls.Outcome(value, LOCAL, since, now))

    def withdraw(self, selects: base.Selection) -> base.Work:
        selected = [uuid for uuid, call in self._calls.items() if selects(call.node, call)]
        return base.Work(calls=[self._calls.pop(uuid) for uuid in selected])

    def close(self, is_parked: bool = False) -> None:
        self._children.close()


def _task_of(call: calls.Invocation) -> Child:
    assert isinstance(call.task, Child)
    return call.task


def _taken(values: deque[str]) -> list[str]:
    return [values.popleft() for _ in range(len(values))]
