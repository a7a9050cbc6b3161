"""Tasks that wait for a signal or a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wbengine import _payloads, atom, exceptions, signals
from wbengine._introspection import object_names
from wbengine._tasks.base import Task
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads
    from wbengine._shapes.expected import ExpectedType


class SignalNumbers:
    """The signals that a workflow has received. Each wait receives the next one of its name.

    :param first: by name, the number of the first signal that earlier attempts did not receive, if
        the workflow has continued as new.
    """

    def __init__(self, first: Mapping[str, int] | None = None) -> None:
        self._first: Mapping[str, int] = first or {}
        # Stored names, which contain the numbers.
        self._received: set[str] = set()
        # By name: a number below which all signals were received.
        self._next: dict[str, int] = {}

    def next(self, name: str) -> int:
        """Return the lowest number of a signal of this name that was not received."""
        number = self._next.get(name) or self._first.get(name, 1)
        while signals.stored_name(name, number) in self._received:
            number += 1
        self._next[name] = number
        return number

    def add(self, stored_name: str) -> None:
        self._received.add(stored_name)

    def remove(self, stored_name: str) -> None:
        """Let another wait receive this signal."""
        self._received.discard(stored_name)
        self._next.clear()

    def first(self) -> dict[str, int]:
        """Return the parameter `first` for the next attempt."""
        names = {signals.name_of(stored_name) for stored_name in self._received}
        return {**self._first, **{name: self.next(name) for name in sorted(names)}}


class WaitingTask(Task):
    """A task whose waiting is done by the engine, with neither a thread nor a slot of a worker.

    A resumed flow continues to wait. If the flow is reverted, the wait ends; the reversion of a
    completed task has no effect.

    :ivar signal: the name of the signal that ends the wait, or a text with several names; "" if
        only the time does.
    :ivar number: the number of that signal among those of its name, outside of workflows.
    :ivar timeout: seconds since the start of the attempt, or None.
    :ivar numbers: the signals that its workflow has received, for a step.
    :ivar received: stored name of the signal that ended the wait of a step, or None.
    :ivar discarded: stored names of signals whose values did not fit `expected`.
    :ivar expected: the type of the value of the signal (`ExpectedType`), or None.
    :ivar is_abandoned: the function of the workflow has cancelled the wait.
    :ivar on_abandoned: called by `abandon`; the engine sets it.
    """

    number: int = 1
    numbers: SignalNumbers | None = None
    received: str | None = None
    discarded: Sequence[str] = ()
    expected: ExpectedType | None = None
    is_abandoned = False
    on_abandoned: Callable[[], object] | None = None
    is_wait = True
    local = True
    cancel_on_revert = True

    def __init__(
        self, name: str, signal: str, timeout: float | None, provides: atom.Provides | None = None
    ) -> None:
        self.signal = signal
        self.timeout = timeout
        super().__init__(name, provides)

    def execute(self) -> Any:
        """Raise an exception, because engines wait instead."""
        raise NotImplementedError(
            f"execute of {self.name!r} is never called: the engine waits instead"
        )

    def find(self, get: Callable[[str, int], signals.Signal | None]) -> signals.Signal | None:
        """Return the signal that ends the wait, or None.

        :param get: returns the received signal of a name and number.
        """
        return get(self.signal, self.next_number(self.signal))

    def next_number(self, name: str) -> int:
        """Return the number of the signal of this name that the task may receive next."""
        if self.numbers is not None:
            return self.numbers.next(name)
        number = self.number
        while signals.stored_name(name, number) in self.discarded:
            number += 1
        return number

    def receive(self, stored_name: str) -> None:
        """Note that this signal ended the wait: no other wait of the workflow receives it."""
        if self.numbers is not None and not self.is_abandoned:
            self.numbers.add(stored_name)
            self.received = stored_name

    def discard(self, stored_name: str) -> None:
        """Note that the value of this signal does not fit: no wait of the workflow receives it."""
        if stored_name not in self.discarded:
            self.discarded = (*self.discarded, stored_name)
        if self.numbers is not None:
            self.numbers.add(stored_name)

    def abandon(self) -> None:
        """End the wait, because the function of the workflow does not receive its result."""
        self.is_abandoned = True
        if self.numbers is not None and self.received is not None:
            self.numbers.remove(self.received)
        if self.on_abandoned is not None:
            self.on_abandoned()

    def value_of(self, signal: signals.Signal, payloads: Payloads | None = None) -> Any:
        """Return the result of the task after this signal.

        :param payloads: where a large value is that the task has to convert.
        :raises InvalidFormat: if the value cannot be decoded, or does not fit the expected type.
        """
        value = signal.value
        if self.expected is None:
            return value
        value = _payloads.loaded(payloads, value, f"signal {signal.name!r}")
        return self.expected.convert(signal.name, value)

    def timeout_result(self) -> Any:
        """Return the result, or the failure, of a task whose time has passed."""
        raise NotImplementedError


class WaitFor(WaitingTask):
    """Waits for the signal with this name; its result is the value of the signal.

    ::

        flow.add(Quote(provides='price'),
                 task.WaitFor('approved', timeout=3 * 86400, provides='approval'),
                 Order())

    It occupies neither a thread nor a slot of a worker. A resumed flow continues to wait. To send a
    signal, use `engine.signal`, `FlowHandle.signal`, `operations.signal`, `wbengine flow signal` or
    the dashboard, also before the task begins. Only the first signal of a name is used, by all
    tasks that wait for it and in all their attempts. A stored signal has precedence over the
    timeout, even if it was sent later. If the flow is reverted, the wait ends; the reversion of a
    completed task has no effect. It cannot be the task of a `Map`.

    With `type`, JSON is converted as for inputs. A value that does not fit is refused when it is
    sent, if the flow already waits. Otherwise, it is discarded with a warning in the log of the
    task when it is received, and the wait continues.

    :param signal: 1 to 255 printable characters.
    :param timeout: seconds since the start of the attempt, after which it fails with
        `SignalTimeout`; None: no limit.
    :param name: default: `wait-for-<signal>`.
    :param type: the class or annotation of the value. Its classes must be allowed (`codec.allow`).
    :raises TypeError, ValueError: if an argument is invalid.
    """

    __module__ = "wbengine.task"

    def __init__(
        self,
        signal: str,
        timeout: float | None = None,
        provides: atom.Provides | None = None,
        name: str | None = None,
        *,
        type: Any = None,
    ) -> None:
        signals.check_name(signal)
        self.expected = _expected(type)
        seconds = None if timeout is None else _seconds("timeout", timeout, " or None")
        super().__init__(f"wait-for-{signal}" if name is None else name, signal, seconds, provides)

    def timeout_result(self) -> Any:
        return ft.Failure.from_exception(
            exceptions.SignalTimeout(
                f"Task {self.name!r} waited {self.timeout:g} s for signal {self.signal!r}, which"
                " was not sent"
            )
        )


class Sleep(WaitingTask):
    """Waits for this number of seconds; its result is None.

    ::

        flow.add(Invite(), task.Sleep(3 * 86400), Remind())

    It occupies neither a thread nor a slot of a worker, and its flow can be parked. The time counts
    from the start of the attempt, also while no engine runs the flow. A retry sleeps again. If the
    flow is reverted, the sleep ends. It cannot be the task of a `Map`.

    :param seconds: 0 or more, finite.
    :param name: default: `sleep-<seconds>`.
    :raises TypeError, ValueError: if an argument is invalid.
    """

    __module__ = "wbengine.task"

    def __init__(self, seconds: float, name: str | None = None) -> None:
        seconds = _seconds("seconds", seconds)
        super().__init__(f"sleep-{seconds:g}" if name is None else name, "", seconds)

    def timeout_result(self) -> Any:
        return None


class WaitForAny(WaitingTask):
    """Waits for the first of several signals; its result is its name and its value.

    :param names: names of the signals.
    :param timeout, type: as for `WaitFor`.
    :raises TypeError, ValueError: if an argument is invalid.
    """

    def __init__(self, names: Iterable[str], timeout: float | None, *, type: Any = None) -> None:
        self.expected = _expected(type)
        self._names = tuple(dict.fromkeys(map(signals.check_name, names)))
        if not self._names:
            raise TypeError("wait_any requires the name of at least one signal")
        seconds = None if timeout is None else _seconds("timeout", timeout, " or None")
        text = signals.OR.join(self._names)
        super().__init__(f"wait-for-{text}"[: object_names.MAX_NAME_LENGTH], text, seconds)

    def find(self, get: Callable[[str, int], signals.Signal | None]) -> signals.Signal | None:
        candidates = [get(name, self.next_number(name)) for name in self._names]
        available = [signal for signal in candidates if signal is not None]
        return min(available, key=lambda signal: (signal.at, signal.name), default=None)

    def value_of(self, signal: signals.Signal, payloads: Payloads | None = None) -> Any:
        return signal.name, super().value_of(signal, payloads)

    def timeout_result(self) -> Any:
        return ft.Failure.from_exception(
            exceptions.SignalTimeout(
                f"Task {self.name!r} waited {self.timeout:g} s for a signal, which was not sent"
            )
        )


def _expected(annotation: Any) -> ExpectedType | None:
    if annotation is None:
        return None
    # Loaded here, because most waits expect no type.
    expected: ExpectedType = object_names.load("wbengine._shapes.expected:ExpectedType")(annotation)
    return expected


def _seconds(name: str, value: Any, or_none: str = "") -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds{or_none}, got {value!r:.80}")
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be 0 or more seconds, got {value!r:.80}")
    return value
