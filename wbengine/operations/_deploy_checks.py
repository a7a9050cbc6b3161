"""Checks of all unfinished flows of a store against the code of this checkout, in child processes.

A child process protects the others from code that hangs, prints or ends its process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import queue
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._concurrency import process_pool, time_limits
from wbengine._introspection import object_names
from wbengine.engines import _code_checks
from wbengine.engines._code_checks import Verdict
from wbengine.operations import _bulk_selection
from wbengine.persistence import backends, base
from wbengine.types import failure as ft

__all__ = ["Checked", "Code", "Target", "check_flows"]

#: Number of flows in one call of a child process.
_FLOWS_PER_CALL: Final = 25
#: Number of calls that are submitted for each child process before one has ended.
_CALLS_PER_CHILD: Final = 3
#: Maximum time that a call may need in addition to the limits of its flows, to import the code.
_IMPORT_SECONDS: Final = 60.0
#: Number of flows of one name that may exceed the limit. The others are not checked.
_MAX_HANGING: Final = 3


class Target(NamedTuple):
    """A flow to check: its uuid, its name, and the command that no engine has carried out."""

    uuid: str
    name: str
    command: str | None


class Checked(NamedTuple):
    target: Target
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Code:
    """How a child process opens the store and imports the code.

    :ivar store: URL of the store.
    :ivar flows: allowed factories; empty: the default.
    :ivar include: modules that are imported first.
    :ivar seconds: maximum time of one flow.
    """

    store: str
    flows: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    seconds: float = 10.0


def check_flows(
    connection: base.Connection,
    conditions: _bulk_selection.Filter,
    states: Sequence[str],
    code: Code,
    processes: int,
) -> Iterator[Checked]:
    """Yield what happens to each flow that meets the conditions. Nothing is written.

    Flows that end meanwhile are omitted.

    :param states: displayed states of the flows if the conditions have none.
    :raises StorageFailure: if the store cannot be read.
    """
    rows = _bulk_selection.iterate(connection, conditions, states)
    targets = (Target(row.uuid, row.name, row.command) for row in rows)
    with process_pool.ProcessPool(processes, name="deploy-check") as pool:
        try:
            yield from _Checks(pool, code, targets).run(processes * _CALLS_PER_CHILD)
        finally:
            pool.stop(wait=False, kill=True)


class _Checks:
    """The calls of the child processes."""

    def __init__(
        self, pool: process_pool.ProcessPool, code: Code, targets: Iterator[Target]
    ) -> None:
        self._pool = pool
        self._code = code
        self._targets = targets
        # Flows of a call that failed; each is checked in a call of its own.
        self._single: deque[Target] = deque()
        self._hanging: Counter[str] = Counter()
        self._ended: queue.SimpleQueue[tuple[Sequence[Target], Any]] = queue.SimpleQueue()

    def run(self, max_calls: int) -> Iterator[Checked]:
        in_flight = 0
        targets: Sequence[Target]
        while True:
            while in_flight < max_calls and (targets := self._next()):
                hanging = [name for name in self._hanging if self._hangs(name)]
                skipped = [each for each in targets if each.name in hanging]
                yield from (Checked(each, _not_checked(each)) for each in skipped)
                targets = [each for each in targets if each.name not in hanging]
                if targets:
                    self._submit(targets)
                    in_flight += 1
            if not in_flight:
                return
            targets, value = self._ended.get()
            in_flight -= 1
            yield from self._results(targets, value)

    def _hangs(self, name: str) -> bool:
        return self._hanging[name] >= _MAX_HANGING

    def _next(self) -> Sequence[Target]:
        if self._single:
            return [self._single.popleft()]
        return list(itertools.islice(self._targets, _FLOWS_PER_CALL))

    def _submit(self, targets: Sequence[Target]) -> None:
        seconds = _IMPORT_SECONDS + self._code.seconds * len(targets)
        done: Callable[[Any], None] = lambda value: self._ended.put((targets, value))  # noqa: E731
        limit = time_limits.TimeLimit(hard=seconds)
        self._pool.submit(_check_in_child, (self._code, targets), done, limit=limit)

    def _results(self, targets: Sequence[Target], value: Any) -> Iterator[Checked]:
        if not isinstance(value, ft.Failure):
            verdicts: list[Verdict | None] = value
            for target, verdict in zip(targets, verdicts, strict=False):
                if verdict is not None:
                    yield Checked(target, verdict)
            # The child stopped at a flow that exceeded the limit.
            if len(verdicts) < len(targets):
                self._hanging[targets[len(verdicts) - 1].name] += 1
                self._single.extend(targets[len(verdicts) :])
        elif value.check(exceptions.StorageFailure):
            value.reraise()
        elif len(targets) > 1:
            self._single.extend(targets)
        else:
            (target,) = targets
            self._hanging[target.name] += 1
            text = f"the check of the flow failed: {value.exception_str}"
            yield Checked(target, Verdict(_code_checks.UNCLEAR, text))


def _not_checked(target: Target) -> Verdict:
    text = f"not checked, because {_MAX_HANGING} flows {target.name!r} did not end"
    return Verdict(_code_checks.UNCLEAR, text)


class _TimeIsOverError(BaseException):
    """Raised in a child process when the check of a flow exceeds its limit."""


def _check_in_child(code: Code, targets: Sequence[Target], emit: object) -> list[Verdict | None]:
    """Return the verdicts of the first flows, None for those that do not exist any more.

    The last one of a shorter result exceeded the limit.
    """
    connection = _connected(code)
    verdicts: list[Verdict | None] = []
    for target in targets:
        try:
            with _limited(code.seconds):
                verdict = _code_checks.check_stored(
                    connection, target.uuid, command=target.command, flows=code.flows or None
                )
            verdicts.append(verdict)
        except exceptions.NotFound:
            verdicts.append(None)
        except _TimeIsOverError:
            text = f"the code did not end within {code.seconds:g} s"
            return [*verdicts, Verdict(_code_checks.UNCLEAR, text)]
    return verdicts


@functools.lru_cache(maxsize=1)
def _connected(code: Code) -> base.Connection:
    """Prepare this child process, and return a connection to the store."""
    logging.disable(logging.CRITICAL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    for name in code.include:
        object_names.import_module(name)
    return backends.fetch(code.store).get_connection()


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise an exception in the block, which the main thread runs, after this time.

    The block may catch it, so it is raised again at the end.
    """
    is_over = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal is_over
        is_over = True
        raise _TimeIsOverError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if is_over:
        raise _TimeIsOverError
