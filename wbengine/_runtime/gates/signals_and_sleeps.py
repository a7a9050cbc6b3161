"""Tasks that wait for signals or sleep (`task.WaitFor`, `task.Sleep`), with stored end times."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._logs import stored_lines
from wbengine._runtime import deadlines, inbox
from wbengine._runtime.gates import base
from wbengine._tasks.sleep_and_wait_for import WaitForAny, WaitingTask
from wbengine.persistence import _listing, models
from wbengine.persistence import base as persistence
from wbengine.running import LOCAL
from wbengine.signals import Signal, child_of, label
from wbengine.types import failure as ft

__all__ = ["WAITS_FOR", "ReceivedSignals", "WaitGate", "begin_wait"]

LOG: Final = logging.getLogger(__name__)

#: Key in an atom's `meta`: a `listing.Wait`.
WAITS_FOR: Final = models.WAITS_FOR
#: Pause until signals are read again that could not be read at the end of a wait.
_READ_AGAIN_SECONDS: Final = 1.0
#: Key in an atom's `meta`: stored names of the signals that were discarded, while it waits.
_DISCARDED: Final = "discarded_signals"


def begin_wait(record: models.AtomDetail, waiting: WaitingTask, now: float) -> None:
    """Store the start and the end of a wait. If it started in an earlier run, its start stays."""
    wait = record.waits_for
    since = now if wait is None else wait.since
    end = None if waiting.timeout is None else since + waiting.timeout
    number = waiting.next_number(waiting.signal)
    schema = None if waiting.expected is None else waiting.expected.schema
    new_wait = _listing.Wait(waiting.name, waiting.signal, since, end, number, schema)
    record.meta[WAITS_FOR] = new_wait.to_meta()


def _end_of_wait(record: models.AtomDetail) -> float:
    wait = record.waits_for
    return math.inf if wait is None or wait.until is None else float(wait.until)


class ReceivedSignals:
    """The signals of a flow that its engine has received. Thread-safe.

    :param nodes: tasks that wait for signals or times.
    """

    def __init__(
        self, nodes: Iterable[int], uuid: str, backend: persistence.Backend | None
    ) -> None:
        self.nodes: Final = frozenset(nodes)
        self._uuid = uuid
        self._backend = backend
        # By name and number.
        self._signals: dict[tuple[str, int], Signal] = {}
        self._lock = threading.Lock()
        self._last_numbers: dict[str, int] = {}
        #: Whether the latest read failed because a stored signal is damaged or has another key.
        self.is_damaged = False
        #: Child flows whose ends were reported, and those among them that no gate has handled.
        self.ended_children: Final[set[str]] = set()
        #: Number of signals that report ends of child flows.
        self.end_count = 0
        self.new_ends: Final[deque[str]] = deque()
        #: Called after a new signal was added; runs set it.
        self.on_new: Callable[[], object] = _do_nothing

    def add(self, signals: Iterable[Signal]) -> bool:
        """Add signals of the flow; return whether any is new."""
        new_signals = [
            signal
            for signal in signals
            if self._signals.setdefault((signal.name, signal.number), signal) is signal
        ]
        for signal in new_signals:
            if (child := child_of(signal)) is not None:
                self.end_count += 1
                self.note_end(child)
        if new_signals:
            self.on_new()
        return bool(new_signals)

    def note_end(self, child: str) -> None:
        """Note that a child flow may have ended. The caller calls `on_new`."""
        self.ended_children.add(child)
        self.new_ends.append(child)

    def add_next(self, signal: Signal) -> Signal:
        """Add a signal with the next number of its name, and return it. For flows without a store.

        :raises ValueError: if the name is too long for the number, or ends with a space.
        """
        with self._lock:
            number = self._last_numbers.get(signal.name, 0) + 1
            while (signal.name, number) in self._signals:
                number += 1
            numbered = signal.numbered(number)
            self._last_numbers[signal.name] = number
        self.add([numbered])
        return numbered

    def __len__(self) -> int:
        return len(self._signals)

    def all(self) -> list[Signal]:
        return list(self._signals.values())

    def get(self, name: str, number: int = 1) -> Signal | None:
        return self._signals.get((name, number))

    def read(self) -> bool:
        """Read earlier signals from the store. Return False if a later call may read them."""
        try:
            self.load()
            self.is_damaged = False
        except exceptions.StorageFailure as error:
            self.is_damaged = isinstance(error, exceptions.CorruptRecord)
            LOG.warning("The signals to flow %s could not be read: %s", self._uuid, error)
            return self.is_damaged
        return True

    def load(self) -> None:
        """Read earlier signals from the store.

        :raises StorageFailure: if they cannot be read.
        """
        if self._backend is not None:
            with contextlib.closing(self._backend.get_connection()) as connection:
                self.add(connection.signals([self._uuid]).get(self._uuid, ()))


class WaitGate(base.Gate):
    """Delays waiting tasks until their signal is received or their time has passed.

    :param end: called with a call that has ended, and its outcome.
    :param record: returns the record of a call.
    :param mark: marks a record as changed.
    """

    def __init__(
        self,
        received: ReceivedSignals,
        timers: deadlines.Timers,
        clock: clocks.Clock,
        end: Callable[[calls.Invocation, calls.Outcome], object],
        record: Callable[[calls.Invocation], models.AtomDetail],
        mark: Callable[[models.AtomDetail], object],
    ) -> None:
        self._received: Final = received
        self._timers: Final = timers
        self._clock: Final = clock
        self._end: Final = end
        self._record: Final = record
        self._mark: Final = mark
        # By call: end of the wait on the monotonic clock, because the wall clock may be set.
        self._calls: dict[calls.Invocation, float] = {}

    @property
    def is_awaiting_signal(self) -> bool:
        return bool(self._calls)

    @property
    def parkable(self) -> int | None:
        # A parked flow with a signal that was not received would be continued at once.
        return None if self._received.is_damaged else len(self._calls)

    @property
    def received_signals(self) -> int:
        return len(self._received)

    @property
    def received_ends(self) -> int:
        return self._received.end_count

    @property
    def waiting_calls(self) -> Collection[calls.Invocation] | None:
        return self._calls.keys()

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        waiting = [call for call in tasks if call.task.is_wait and call.action == calls.EXECUTE]
        if not waiting:
            return tasks
        is_read = not self._may_receive_unread(waiting) or self._received.read()
        now, wall = self._clock.monotonic(), self._clock.time()
        for call in waiting:
            end = now + (_end_of_wait(self._record(call)) - wall)
            self._calls[call] = end
            if end < math.inf:
                self._timers.set((self, call), end)
            _task_of(call).on_abandoned = self._received.on_new
        self._end_waits([call for call in waiting if now >= self._calls[call]], is_read)
        not_admitted = set(waiting)
        return [call for call in tasks if call not in not_admitted]

    def _may_receive_unread(self, waiting: Iterable[calls.Invocation]) -> bool:
        """Return whether new waits may receive signals that were not read from the store."""
        tasks = [task for task in map(_task_of, waiting) if task.signal]
        if len(tasks) == 1 and not isinstance(tasks[0], WaitForAny):
            return tasks[0].find(self._received.get) is None
        return bool(tasks)  # Several waits may need several signals.

    def on_event(self, event: inbox.Event) -> bool:
        if isinstance(event, inbox.SignalsReceived):
            self._end_waits([], is_read=True)
        return False

    def release(self, due: Iterable[Hashable]) -> base.Work:
        timed_out: list[Any] = [call for call in due if call in self._calls]
        if timed_out:
            # A stored signal has precedence over the timeout.
            self._end_waits(timed_out, self._received.read())
        return base.NOTHING

    def _end_waits(self, timed_out: Iterable[calls.Invocation], is_read: bool) -> None:
        """End waits that are abandoned or whose signal was received, then those that timed out.

        The wait that began first receives a signal.

        :param is_read: whether the stored signals were read. If not, those that timed out wait
            until they are.
        """
        missing: set[tuple[str, int]] = set()

        def get(name: str, number: int) -> Signal | None:
            # If a missing signal arrives now, a later wait must not receive it before the waits
            # that were already checked. The next call of this method handles it.
            signal = None if (name, number) in missing else self._received.get(name, number)
            if signal is None:
                missing.add((name, number))
            return signal

        for call in list(self._calls):
            if _task_of(call).signal or _task_of(call).is_abandoned:
                self._end_if_over(call, get)
        for call in timed_out:
            if call not in self._calls:
                continue
            if is_read or not _task_of(call).signal:
                self._end_if_over(call, get, timed_out=True)
            else:
                self._timers.set((self, call), self._clock.monotonic() + _READ_AGAIN_SECONDS)

    def _end_if_over(
        self,
        call: calls.Invocation,
        get: Callable[[str, int], Signal | None],
        *,
        timed_out: bool = False,
    ) -> None:
        waiting = _task_of(call)
        value: Any
        if waiting.is_abandoned:
            cancelled = exceptions.Cancelled("The workflow cancelled this wait")
            value = ft.Failure.from_exception(cancelled)
        elif (received := self._receive(call, get)) is not None:
            value = received.value
        elif timed_out:
            value = waiting.timeout_result()
        else:
            return
        del self._calls[call]
        now, record = self._clock.time(), self._record(call)
        wait = record.waits_for
        since = now if wait is None else wait.since
        record.meta.pop(WAITS_FOR, None)
        record.meta.pop(_DISCARDED, None)
        self._end(call, calls.Outcome(value, LOCAL, since, now))

    def _receive(
        self, call: calls.Invocation, get: Callable[[str, int], Signal | None]
    ) -> _Received | None:
        """Receive the first signal whose value fits, and discard those before it."""
        waiting, record = _task_of(call), self._record(call)
        while (signal := waiting.find(get)) is not None:
            try:
                value = waiting.value_of(signal, call.payloads)
            except exceptions.PayloadUnavailable as error:
                value = ft.Failure.from_exception(error)
            except exceptions.UndecodableValue as error:
                raise exceptions.UndecodableValue(
                    f"Signal {signal.name!r}, for which task {waiting.name!r} waits: {error}"
                ) from error
            except exceptions.InvalidFormat as error:
                if waiting.expected is not None:
                    _discard(call, record, signal, error)
                    # Senders read it: the task now accepts the next number.
                    self._mark(record)
                    self.discards += 1
                    continue
                value = ft.Failure.from_exception(error)
            waiting.receive(signal.stored_name)
            return _Received(value)
        return None

    def withdraw(self, selects: base.Selection) -> base.Work:
        return base.Work(calls=base.remove_selected(self._calls, selects))


def _task_of(call: calls.Invocation) -> WaitingTask:
    assert isinstance(call.task, WaitingTask)
    return call.task


class _Received(NamedTuple):
    """The result of a wait after its signal."""

    value: Any


def _discard(
    call: calls.Invocation,
    record: models.AtomDetail,
    signal: Signal,
    error: exceptions.InvalidFormat,
) -> None:
    waiting = _task_of(call)
    waiting.discard(signal.stored_name)
    if (wait := record.waits_for) is not None:
        number = waiting.next_number(waiting.signal)
        record.meta[WAITS_FOR] = wait._replace(number=number).to_meta()
    logged = record.meta.get(_DISCARDED, [])
    if signal.stored_name not in logged:  # Not by an earlier run.
        record.meta[_DISCARDED] = [*logged, signal.stored_name]
        _log_discarded(call, signal, error)


def _log_discarded(call: calls.Invocation, signal: Signal, error: exceptions.InvalidFormat) -> None:
    text = f"Signal {label(signal.name, signal.number)!r} was discarded: {error}"
    LOG.warning("%s: %s", call.task.name, text)
    if call.events is not None:
        line = stored_lines.Line(time.time(), "WARNING", LOG.name, text)
        call.events(stored_lines.EVENT, {"lines": [line]})


def _do_nothing() -> None:
    """Do nothing; used while no run waits for signals."""
