"""Tasks that wait for signals (`task.WaitFor`): what a flow was told, and until when they wait."""

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

__all__ = ["WAITS_FOR", "Waits", "begin", "until"]

LOG: Final = logging.getLogger(__name__)

#: Where an atom's `meta` says what it waits for, since when, and until when (unix seconds).
WAITS_FOR: Final = "waits_for"


def begin(record: models.AtomDetail, waiting: task_module.WaitFor, now: float) -> None:
    """Note in its record that a task waits, unless it waited in an earlier run already."""
    if record.noted(WAITS_FOR) is None:
        end = None if waiting.timeout is None else now + waiting.timeout
        record.meta[WAITS_FOR] = {"signal": waiting.signal, "since": now, "until": end}


def until(record: models.AtomDetail) -> float:
    """When the time of a task that waits is over."""
    noted = record.noted(WAITS_FOR)
    end = None if noted is None else noted["until"]
    return math.inf if end is None else float(end)


class Waits:
    """The signals that one flow was given, as far as its engine has heard of them.

    `nodes` wait for some.  Any thread adds them; `wake` wakes the loop of the run, which then
    finds that there are `news`.
    """

    def __init__(self, nodes: Iterable[int], uuid: str, backend: base.Backend | None) -> None:
        self.nodes: Final = frozenset(nodes)
        self._uuid = uuid
        self._backend = backend
        self._given: dict[str, Signal] = {}
        self.news = False
        self.wake: Callable[[], object] = _nobody

    def add(self, found: Iterable[Signal]) -> bool:
        """Take in what the flow was given; whether anything is new."""
        new = [one for one in found if self._given.setdefault(one.name, one) is one]
        if new:
            self.news = True
            self.wake()
        return bool(new)

    @property
    def heard(self) -> int:
        """Of how many signals it has heard."""
        return len(self._given)

    def look(self) -> None:
        """Read what was signalled before; a store that fails is asked again later."""
        if self._backend is None:
            return
        try:
            with contextlib.closing(self._backend.get_connection()) as connection:
                self.add(connection.signals([self._uuid]).get(self._uuid, ()))
        except exceptions.StorageFailure as error:
            LOG.warning("The signals to flow %s could not be read: %s", self._uuid, error)

    def outcome(
        self, call: calls.Invocation, record: models.AtomDetail, now: float, *, over: bool = False
    ) -> calls.Outcome | None:
        """What a call that waits has come to, which then does not; None: it goes on waiting.

        `now` is in unix seconds; `over`: so is its time.
        """
        waiting = call.task
        assert isinstance(waiting, task_module.WaitFor)
        signal = self._given.get(waiting.signal)
        if signal is not None:
            try:
                value = signal.value
            except exceptions.InvalidFormat as error:
                value = ft.Failure.from_exception(error)
        elif over:
            value = ft.Failure.from_exception(
                exceptions.SignalTimeout(
                    f"Task {waiting.name!r} waited {waiting.timeout:g} s for signal"
                    f" {waiting.signal!r}, which was not given"
                )
            )
        else:
            return None
        noted = record.meta.pop(WAITS_FOR, None)
        return calls.Outcome(value, calls.LOCAL, noted["since"] if noted else now, now)


def _nobody() -> None:
    """No run waits for news."""
