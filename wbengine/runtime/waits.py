"""Tasks that wait for signals (`task.WaitFor`): signals of a flow and deadlines of waits."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from wbengine import exceptions
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine.persistence import base, models
from wbengine.signals import Signal
from wbengine.types import failure as ft

__all__ = ["MAX_STORED_WAITS", "WAITS_FOR", "Waits", "begin", "until"]

LOG: Final = logging.getLogger(__name__)

#: Key in an atom's `meta`: the signal, and the start and end of the wait (Unix seconds).
WAITS_FOR: Final = models.WAITS_FOR
#: Maximum number of signals that the record of a flow lists as awaited.
MAX_STORED_WAITS: Final = 20


def begin(record: models.AtomDetail, waiting: task_module.WaitFor, now: float) -> None:
    """Store the start of a wait, unless the task waited in an earlier run already."""
    if record.meta_value(WAITS_FOR) is None:
        end = None if waiting.timeout is None else now + waiting.timeout
        record.meta[WAITS_FOR] = {"signal": waiting.signal, "since": now, "until": end}


def until(record: models.AtomDetail) -> float:
    wait = record.meta_value(WAITS_FOR)
    end = None if wait is None else wait["until"]
    return math.inf if end is None else float(end)


class Waits:
    """The signals of a flow that its engine has received.

    `nodes` are the tasks that wait for signals. Any thread may add signals. `add` sets `has_new`
    and calls `wake`, which wakes the loop of the run.
    """

    def __init__(self, nodes: Iterable[int], uuid: str, backend: base.Backend | None) -> None:
        self.nodes: Final = frozenset(nodes)
        self._uuid = uuid
        self._backend = backend
        self._signals: dict[str, Signal] = {}
        self.has_new = False
        self.wake: Callable[[], object] = _do_nothing

    def add(self, signals: Iterable[Signal]) -> bool:
        """Add signals of the flow; return whether any is new."""
        new_signals = [
            signal for signal in signals if self._signals.setdefault(signal.name, signal) is signal
        ]
        if new_signals:
            self.has_new = True
            self.wake()
        return bool(new_signals)

    @property
    def count(self) -> int:
        return len(self._signals)

    def read(self) -> None:
        """Read earlier signals from the store. After an error, a later call reads them."""
        if self._backend is None:
            return
        try:
            with contextlib.closing(self._backend.get_connection()) as connection:
                self.add(connection.signals([self._uuid]).get(self._uuid, ()))
        except exceptions.StorageFailure as error:
            LOG.warning("The signals to flow %s could not be read: %s", self._uuid, error)

    def outcome(
        self,
        call: calls.Invocation,
        record: models.AtomDetail,
        now: float,
        *,
        timed_out: bool = False,
    ) -> calls.Outcome | None:
        """Return the outcome of a waiting call, or None if it continues to wait."""
        waiting = call.task
        assert isinstance(waiting, task_module.WaitFor)
        signal = self._signals.get(waiting.signal)
        if signal is not None:
            try:
                value = signal.value
            except exceptions.InvalidFormat as error:
                value = ft.Failure.from_exception(error)
        elif timed_out:
            value = ft.Failure.from_exception(
                exceptions.SignalTimeout(
                    f"Task {waiting.name!r} waited {waiting.timeout:g} s for signal"
                    f" {waiting.signal!r}, which was not sent"
                )
            )
        else:
            return None
        wait = record.meta.pop(WAITS_FOR, None)
        return calls.Outcome(value, calls.LOCAL, wait["since"] if wait else now, now)


def _do_nothing() -> None:
    """Do nothing: no run waits for signals."""
