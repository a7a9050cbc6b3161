"""Faults of messages, workers and stores."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.transports import _encoding
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based._worker_side.jobs import Job

__all__ = ["WHEN", "KINDS", "STATES", "Fault", "Gate", "Saboteur"]

#: Kinds of messages: requests, replies, and notices about engines and workers.
KINDS: Final = (pr.REQUEST, pr.RESPONSE, pr.NOTIFY)

#: States of a reply.
STATES: Final = (pr.RUNNING, pr.EVENT, pr.SUCCESS, pr.FAILURE)

#: Suffix of the name of an item of a `Map`.
_ITEM_SUFFIX: Final = re.compile(r"\[\d+\]\Z")

#: Times at which a worker may be killed: before a task starts, or before the reply.
WHEN: Final = ("start", "end")


class Fault:
    """An injected fault, which occurs `times` times (None: always).

    The fault ends at the end of a `with` block.
    """

    def __init__(self, description: str, times: int | None) -> None:
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(f"times must be a whole number of at least 1 or None, got {times!r}")
        self._description = description
        self._times = times
        self._lock = threading.Lock()
        self._occurred = threading.Event()
        self._is_over = False
        #: How often the fault has occurred.
        self.count = 0

    def end(self) -> None:
        """End the fault. Idempotent."""
        with self._lock:
            self._is_over = True

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until the fault has occurred.

        :raises AssertionError: if it does not occur within `timeout` seconds.
        """
        assert self._occurred.wait(timeout), f"{self!r} did not happen within {timeout:g} s"

    def trigger(self) -> bool:
        """Return True if the fault occurs now, and count it."""
        with self._lock:
            if self._is_over or (self._times is not None and self.count >= self._times):
                return False
            self.count += 1
        self._occurred.set()
        return True

    def __repr__(self) -> str:
        return f"<Fault {self._description}, {self.count} times>"


class _Rule:
    """A fault, the messages that it affects, and its effect."""

    def __init__(
        self, fault: Fault, kind: str, atom: str | None, state: str | None, act: _Effect
    ) -> None:
        self.fault = fault
        self._criteria = kind, atom, state
        self.act = act

    def matches(self, kind: str, atom: str | None, state: str | None) -> bool:
        wanted_kind, wanted_atom, wanted_state = self._criteria
        return (
            kind == wanted_kind
            and wanted_state in (None, state)
            and (wanted_atom is None or _matches_atom(atom, wanted_atom))
        )


def _matches_atom(name: str | None, atom: str) -> bool:
    return name is not None and (name == atom or _ITEM_SUFFIX.sub("", name) == atom)


#: Effect of a fault on a message, given `deliver`. Returns True if it replaces the delivery.
_Effect = Callable[[Callable[[], None]], bool]


class Gate:
    """The entrance of a broker. Each message is delivered or affected by a fault."""

    def __init__(self, deliver: Callable[[str, int, bytes], None]) -> None:
        self._deliver = deliver
        self._rules: list[_Rule] = []
        # Names of atoms by the id of their request, because replies contain only the id.
        self._atoms: dict[str, str] = {}

    def add(
        self, fault: Fault, kind: str, atom: str | None, state: str | None, act: _Effect
    ) -> Fault:
        """Add a fault.

        :raises ValueError: if there are no such messages.
        """
        if kind not in KINDS:
            hint = object_names.hint(str(kind), KINDS)
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}{hint}")
        if kind == pr.NOTIFY and (atom, state) != (None, None):
            raise ValueError("atom and state must be None for NOTIFY")
        if state is not None and kind != pr.RESPONSE:
            raise ValueError(f"state can be used only for {pr.RESPONSE}, got kind {kind}")
        if state is not None and state not in STATES:
            hint = object_names.hint(str(state), STATES)
            raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}{hint}")
        self._rules.append(_Rule(fault, kind, atom, state, act))
        return fault

    def __call__(self, queue: str, priority: int, data: bytes) -> bool:
        message = self._read(data)
        return any(
            rule.act(lambda: self._deliver(queue, priority, data))
            for rule in tuple(self._rules)
            if rule.matches(*message) and rule.fault.trigger()
        )

    def _read(self, data: bytes) -> tuple[str, str | None, str | None]:
        head, _, body = _encoding.split(data)[1].partition(b"\n")
        properties = json.loads(head)["properties"]
        kind, id = str(properties.get("type")), str(properties.get("correlation_id"))
        state = None
        if kind == pr.REQUEST:
            self._atoms[id] = json.loads(body)["task_name"]
        elif kind == pr.RESPONSE:
            state = json.loads(body)["state"]
        return kind, self._atoms.get(id), state


class Saboteur:
    """Observer that kills workers.

    A killed worker behaves like a dead process: it sends neither replies nor heartbeats, and keeps
    its requests. `release` ends its threads without running the task.
    """

    def __init__(self) -> None:
        self._plans: list[tuple[Fault, str, str]] = []
        self._is_over = threading.Event()

    def plan(self, fault: Fault, atom: str, when: str) -> Fault:
        """Add a fault.

        :raises ValueError: if `when` is not in `WHEN`.
        """
        if when not in WHEN:
            raise ValueError(f"when must be 'start' or 'end', got {when!r}")
        self._plans.append((fault, atom, when))
        return fault

    def release(self) -> None:
        """End all faults and the threads of killed workers."""
        self._is_over.set()

    def _kill_if_planned(self, job: Job, moment: str) -> bool:
        for fault, atom, when in self._plans:
            is_affected = when == moment and _matches_atom(job.name, atom)
            if is_affected and not self._is_over.is_set() and fault.trigger():
                self._is_over.wait()
                return True
        return False

    # The worker calls observers with its lock: a method that waits blocks the whole worker.

    def received(self, job: Job) -> None:
        """Do nothing."""

    def started(self, job: Job) -> None:
        if self._kill_if_planned(job, "start"):
            replacement: Any = _KilledTask()
            job.endpoint = replacement

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._kill_if_planned(job, "end")

    def refused(self, job: Job) -> None:
        """Do nothing."""

    def returned(self, job: Job) -> None:
        """Do nothing."""

    def given_up(self, job: Job) -> None:
        """Do nothing."""


class _KilledTask:
    """Replacement of a task whose worker was killed before the task started."""

    def begin(self, *rest: Any) -> invocation.Outcome:
        return invocation.Outcome(ft.Failure.from_exception(RuntimeError("its worker was killed")))
