"""Steps that wait for the ends of child flows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from wbengine import exceptions, states
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._runtime import control, inbox
from wbengine._runtime.gates import base
from wbengine._runtime.gates.signals_and_sleeps import ReceivedSignals
from wbengine._tasks.child import Child
from wbengine.persistence import models
from wbengine.running import LOCAL
from wbengine.types import failure as ft

__all__ = ["ChildGate", "Children", "End", "Start"]

#: Number of child flows in progress from which their ends wake a parked parent in groups: each
#: wake-up loads the records of all steps.
_MIN_GROUPED: Final = 32
#: Seconds for which the first end of a group waits for others, for each child flow in progress.
_DELAY_SECONDS: Final = 0.005
_MAX_DELAY_SECONDS: Final = 30.0


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

    def cancel(self, uuids: Collection[str], reason: str) -> Collection[str]:
        """Cancel flows. Return those that do not exist, so that it has no effect."""

    def revert(self, requests: Mapping[str, str]) -> Mapping[str, End]:
        """Revert flows, and return the ends of those whose reversion is over.

        :param requests: by uuid of the flow, a text that identifies the reversion among all of it.
        """

    def ends_of(self, tasks: Mapping[str, Child]) -> Mapping[str, End]:
        """Return the ends of flows, except of those that have not ended, or are to run again."""

    def close(self) -> None:
        """End the work of this process at the end of the run of the parent. Idempotent."""


class ChildGate(base.Gate):
    """Delays the steps of child flows until these flows have ended.

    :param make_children: called before the first child flow, because most workflows have none.
    :param end: called with a call that has ended, and its outcome.
    :param record: returns the record of a call.
    """

    def __init__(
        self,
        make_children: Callable[[], Children],
        received: ReceivedSignals,
        clock: clocks.Clock,
        end: Callable[[calls.Invocation, calls.Outcome], object],
        record: Callable[[calls.Invocation], models.AtomDetail],
    ) -> None:
        self._make_children: Final = make_children
        self._made_children: Children | None = None
        self._received: Final = received
        self._clock: Final = clock
        self._end: Final = end
        self._record: Final = record
        # By uuid of the child flow.
        self._calls: dict[str, calls.Invocation] = {}
        # Flows whose steps the function of the workflow does not wait for any more.
        self._abandoned: deque[str] = deque()

    @property
    def _children(self) -> Children:
        if self._made_children is None:
            self._made_children = self._make_children()
        return self._made_children

    @property
    def is_awaiting_signal(self) -> bool:
        return bool(self._calls)

    @property
    def parkable(self) -> int | None:
        return len(self._calls) if not self._calls or self._children.survive_run else None

    @property
    def end_delay(self) -> float:
        if len(self._calls) < _MIN_GROUPED:
            return 0.0
        return min(len(self._calls) * _DELAY_SECONDS, _MAX_DELAY_SECONDS)

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
        reverts: list[str] = []
        executed: list[str] = []
        for uuid in uuids:
            is_revert = self._calls[uuid].action == calls.REVERT
            (reverts if is_revert else executed).append(uuid)
        if reverts:
            self._revert(reverts)
        ended = [uuid for uuid in executed if uuid in self._received.ended_children]
        if ended:
            tasks = {uuid: _task_of(self._calls[uuid]) for uuid in ended}
            for uuid, end in self._children.ends_of(tasks).items():
                self._finish(uuid, end.value)
        starts: list[Start] = []
        cancelled: list[str] = []
        for uuid in executed:
            call = self._calls.get(uuid)
            if call is None:
                continue
            if call.cancellation.cancelled or _task_of(call).is_abandoned:
                cancelled.append(uuid)
            else:
                starts.append(Start(uuid, self._record(call).uuid, _task_of(call)))
        if cancelled:
            self._cancel(cancelled)
        if starts:
            for uuid, failure in self._children.start(starts).items():
                self._finish(uuid, failure)

    def _cancel(self, uuids: Iterable[str]) -> None:
        detached: list[str] = []
        attached: list[str] = []
        for uuid in uuids:
            is_detached = _task_of(self._calls[uuid]).is_detached
            (detached if is_detached else attached).append(uuid)
        missing = self._children.cancel(attached, "its parent ended") if attached else ()
        for uuid in (*detached, *missing):
            text = f"The wait for child flow {uuid} was cancelled"
            self._finish(uuid, ft.Failure.from_exception(exceptions.Cancelled(text)))

    def _revert(self, uuids: Iterable[str]) -> None:
        waiting = {uuid: self._calls[uuid] for uuid in uuids}
        requests = {uuid: f"{call.uuid} {call.attempt}" for uuid, call in waiting.items()}
        for uuid, end in self._children.revert(requests).items():
            was_never_started = end.state == states.UNDEFINED and isinstance(
                waiting[uuid].result, ft.Failure
            )
            is_over = end.state == states.REVERTED or was_never_started
            self._finish(uuid, None if is_over else end.value)

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

    def close(self, parked: control.Parked | None = None) -> None:
        if self._made_children is not None:
            self._made_children.close()


def _task_of(call: calls.Invocation) -> Child:
    assert isinstance(call.task, Child)
    return call.task


def _taken(values: deque[str]) -> list[str]:
    return [values.popleft() for _ in range(len(values))]
