"""What goes wrong with messages, workers and stores, when it is wanted."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine import _names, invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based.worker_side.jobs import Job

__all__ = ["AT", "KINDS", "STATES", "Fault", "Gate", "Saboteur"]

#: What messages are: what an engine asks a worker for, what a worker answers, and what both say of
#: themselves.
KINDS: Final = (pr.REQUEST, pr.RESPONSE, pr.NOTIFY)

#: What an answer may say.
STATES: Final = (pr.RUNNING, pr.EVENT, pr.SUCCESS, pr.FAILURE)

#: What is behind the name of a `Map` in those of its items.
_ITEM: Final = re.compile(r"\[\d+\]\Z")

#: When a worker may be killed: before the body of a task runs, and before anybody is told how it
#: ended.
AT: Final = ("start", "end")


class Fault:
    """Something that is to go wrong so many `times` (None: always); `count` is how often it did.

    As a context manager it is over at the end of the block.
    """

    def __init__(self, what: str, times: int | None) -> None:
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(
                f"times is {times!r}: it must be a whole number of at least 1, or None"
            )
        self._what = what
        self._times = times
        self._lock = threading.Lock()
        self._happened = threading.Event()
        self._over = False
        self.count = 0

    def end(self) -> None:
        """It does not happen any more.  Idempotent."""
        with self._lock:
            self._over = True

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def wait(self, timeout: float = 30.0) -> None:
        """Until it happened.

        :raises AssertionError: it did not in `timeout` seconds.
        """
        assert self._happened.wait(timeout), f"{self!r} did not happen in {timeout:g} s"

    def strike(self) -> bool:
        """Whether it happens now; if so, it is counted."""
        with self._lock:
            if self._over or (self._times is not None and self.count >= self._times):
                return False
            self.count += 1
        self._happened.set()
        return True

    def __repr__(self) -> str:
        return f"<Fault {self._what}, {self.count} times>"


class _Rule:
    """Which messages a fault is for, and what it does with them."""

    def __init__(
        self, fault: Fault, kind: str, atom: str | None, state: str | None, act: _Act
    ) -> None:
        self.fault = fault
        self._wanted = kind, atom, state
        self.act = act

    def fits(self, kind: str, atom: str | None, state: str | None) -> bool:
        wanted_kind, wanted_atom, wanted_state = self._wanted
        return (
            kind == wanted_kind
            and wanted_state in (None, state)
            and (wanted_atom is None or _is_of(atom, wanted_atom))
        )


def _is_of(name: str | None, atom: str) -> bool:
    """Whether a request is of an atom: as it is, or for one item of a `Map`."""
    return name is not None and (name == atom or _ITEM.sub("", name) == atom)


#: `(again)`: does something about a message, which `again` lets in once more; True: it was not let
#: in, and will not be.
_Act = Callable[[Callable[[], None]], bool]


class Gate:
    """Stands at a broker: each message that comes passes, or a fault sees to it."""

    def __init__(self, let_in: Callable[[str, int, bytes], None]) -> None:
        self._let_in = let_in
        self._rules: list[_Rule] = []
        # The atoms of requests, by their ids: answers name only these.
        self._atoms: dict[str, str] = {}

    def add(self, fault: Fault, kind: str, atom: str | None, state: str | None, act: _Act) -> Fault:
        """
        :raises ValueError: there are no such messages.
        """
        if kind not in KINDS:
            hint = _names.hint(str(kind), KINDS)
            raise ValueError(f"{kind!r} is no kind of message{hint}: {', '.join(KINDS)}")
        if kind == pr.NOTIFY and (atom, state) != (None, None):
            raise ValueError("a NOTIFY is of no atom and has no state")
        if state is not None and kind != pr.RESPONSE:
            raise ValueError(f"a {kind} has no state: only a {pr.RESPONSE} has one")
        if state is not None and state not in STATES:
            hint = _names.hint(str(state), STATES)
            raise ValueError(f"{state!r} is no state of an answer{hint}: {', '.join(STATES)}")
        self._rules.append(_Rule(fault, kind, atom, state, act))
        return fault

    def __call__(self, queue: str, priority: int, data: bytes) -> bool:
        """Whether somebody else sees to a message from now on."""
        told = self._read(data)
        return any(
            rule.act(lambda: self._let_in(queue, priority, data))
            for rule in tuple(self._rules)
            if rule.fits(*told) and rule.fault.strike()
        )

    def _read(self, data: bytes) -> tuple[str, str | None, str | None]:
        head, _, body = data.partition(b"\n")
        properties = json.loads(head)["properties"]
        kind, id = str(properties.get("type")), str(properties.get("correlation_id"))
        state = None
        if kind == pr.REQUEST:
            self._atoms[id] = json.loads(body)["task_name"]
        elif kind == pr.RESPONSE:
            state = json.loads(body)["state"]
        return kind, self._atoms.get(id), state


class Saboteur:
    """Kills workers: as their observer, it lets none go on that is to die.

    What is killed so does nothing more, like a process that is gone: it neither answers nor beats,
    and keeps what it holds.  `release` ends its threads, without the body of the task having run.
    """

    def __init__(self) -> None:
        self._plans: list[tuple[Fault, str, str]] = []
        self._over = threading.Event()

    def plan(self, fault: Fault, atom: str, when: str) -> Fault:
        """
        :raises ValueError: there is no such moment.
        """
        if when not in AT:
            raise ValueError(
                f"a worker dies at the 'start' or at the 'end' of an atom, not {when!r}"
            )
        self._plans.append((fault, atom, when))
        return fault

    def release(self) -> None:
        """Nobody is killed any more."""
        self._over.set()

    def _may_die(self, job: Job, moment: str) -> bool:
        for fault, atom, when in self._plans:
            wanted = when == moment and _is_of(job.name, atom)
            if wanted and not self._over.is_set() and fault.strike():
                self._over.wait()
                return True
        return False

    # What observers are told, under the lock of the worker: who waits here holds up all of it.

    def received(self, job: Job) -> None:
        """It lives."""

    def started(self, job: Job) -> None:
        if self._may_die(job, "start"):
            gone: Any = _Gone()
            job.endpoint = gone

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._may_die(job, "end")

    def refused(self, job: Job) -> None:
        """It lives."""

    def returned(self, job: Job) -> None:
        """It lives."""

    def given_up(self, job: Job) -> None:
        """It is about to end anyway."""


class _Gone:
    """What is left of a task whose worker was killed before it began."""

    def begin(self, *rest: Any) -> invocation.Outcome:
        return invocation.Outcome(ft.Failure.from_exception(RuntimeError("its worker was killed")))
