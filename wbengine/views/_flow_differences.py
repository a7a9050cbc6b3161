"""Where two runs part: the differences between the records of two flows."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote
from wbengine.types import codec
from wbengine.views import redaction

__all__ = ["Comparison", "Difference", "compare"]

_MISSING: Final = object()


@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference between two flows.

    :ivar kind: 'value' of an input; 'presence' or 'version' of a task; 'inserted' or 'removed' of a
        step of one flow only; 'call', 'arguments' or 'signal' of a step; 'state', 'failure' or
        'result' of a task or step.
    :ivar where: name of the input or task, or position of the step and name of its workflow.
    :ivar first: text for the first flow, or None: it has no such part.
    :ivar second: the same for the second flow.
    """

    kind: str
    where: str
    first: str | None
    second: str | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences between two flows, in order, and the number of equal parts.

    :ivar equal: number of equal inputs, tasks and steps.
    """

    differences: tuple[Difference, ...]
    equal: int


def compare(
    first: models.FlowDetail, second: models.FlowDetail, redactor: redaction.Redactor
) -> Comparison:
    """Compare inputs, then tasks, each workflow after the steps of its latest execution."""
    redactor = redactor.with_secrets_of_flow(first).with_secrets_of_flow(second)
    comparing = _Comparing(redactor)
    for pair in _pairs(_inputs(first), _inputs(second)):
        comparing.inputs(*pair)
    firsts, seconds = _tasks(first), _tasks(second)
    for name, one, other in _pairs(firsts, seconds):
        if isinstance(one, models.AtomDetail) and isinstance(other, models.AtomDetail):
            for step, other_step in _aligned(_steps(first, one), _steps(second, other)):
                comparing.step(name, step, other_step)
        comparing.task(f"task {name!r}", one, other)
    return Comparison(tuple(comparing.differences), comparing.equal)


class _Comparing:
    def __init__(self, redactor: redaction.Redactor) -> None:
        self._redactor = redactor
        self.differences: list[Difference] = []
        self.equal = 0

    def inputs(self, name: str, one: Any, other: Any) -> None:
        def shown(value: Any) -> str:
            return self._redactor.result(value, name)

        self._count(self._values("value", f"input {name!r}", one, other, shown))

    def task(self, where: str, one: Any, other: Any) -> None:
        """Compare two records of tasks."""
        if one is _MISSING or other is _MISSING:
            self._add("presence", where, self._name(one), self._name(other))
            return
        self._count(
            self._texts("version", where, one.version, other.version)
            or self._outcome(where, one, other)
        )

    def step(self, workflow: str, one: _Step | None, other: _Step | None) -> None:
        """Compare two aligned steps: the first difference counts."""
        if one is None or other is None:
            present, kind = (other, "inserted") if one is None else (one, "removed")
            where = f"step {present.note.position} of {workflow!r}" if present else ""
            self._add(kind, where, self._call(one), self._call(other))
            return
        mine, theirs = one.note, other.note
        where = f"step {mine.position} of {workflow!r}"
        if mine.position != theirs.position:
            where += f" (step {theirs.position} of the second flow)"
        calls = self._call(one), self._call(other)
        if mine.task != theirs.task:
            self._add("call", where, *calls)
        elif mine.digest != theirs.digest:
            self._add("arguments", where, *calls)
        else:
            self._count(
                self._texts("signal", where, mine.signal, theirs.signal)
                or self._outcome(where, one.record, other.record)
            )

    def _outcome(self, where: str, one: models.AtomDetail, other: models.AtomDetail) -> bool:
        """Add the first difference between failures, results and states."""
        failures = [None if each.failure is None else str(each.failure) for each in (one, other)]
        return (
            self._texts("failure", where, *failures)
            or self._values("result", where, one.results, other.results, self._redactor.result)
            or self._texts("state", where, one.state, other.state)
        )

    def _values(
        self, kind: str, where: str, one: Any, other: Any, shown: Callable[[Any], Any]
    ) -> bool:
        if _encoded(one) == _encoded(other):
            return False
        texts = [None if each is _MISSING else str(shown(each)) for each in (one, other)]
        self._add(kind, where, *texts)
        return True

    def _texts(self, kind: str, where: str, one: str | None, other: str | None) -> bool:
        if one == other:
            return False
        mask = self._redactor.text
        self._add(kind, where, *(None if each is None else mask(each) for each in (one, other)))
        return True

    def _add(self, kind: str, where: str, first: str | None, second: str | None) -> None:
        self.differences.append(Difference(kind, where, first, second))

    def _count(self, is_different: bool) -> None:
        self.equal += not is_different

    def _name(self, record: Any) -> str | None:
        return None if record is _MISSING else self._redactor.text(f"{record.name}: {record.state}")

    def _call(self, step: _Step | None) -> str | None:
        if step is None:
            return None
        note = step.note
        arguments = note.text if self._redactor.show_values or not note.text else "..."
        return self._redactor.text(f"{note.task}({arguments})")


def _pairs(first: dict[Any, Any], second: dict[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for key in dict.fromkeys([*first, *second]):
        yield key, first.get(key, _MISSING), second.get(key, _MISSING)


def _inputs(flow: models.FlowDetail) -> dict[str, Any]:
    records = [record for record in flow if record.name == models.INJECTOR]
    return {name: value for record in records for name, value in (record.results or {}).items()}


def _tasks(flow: models.FlowDetail) -> dict[str, models.AtomDetail]:
    return {
        record.name: record
        for record in flow
        if record.name != models.INJECTOR and not record.is_step
    }


class _Step(NamedTuple):
    note: StepNote
    record: models.AtomDetail


def _steps(flow: models.FlowDetail, workflow: models.AtomDetail) -> list[_Step]:
    """Return the steps of the latest execution of a workflow, in order."""
    notes = [(StepNote.of(record), record) for record in flow if record.is_step]
    own = [_Step(note, each) for note, each in notes if note and note.workflow == workflow.uuid]
    latest = max((step.note.attempt for step in own), default=0)
    executed = [step for step in own if step.note.attempt == latest]
    return sorted(executed, key=lambda step: step.note.position)


def _aligned(
    first: Sequence[_Step], second: Sequence[_Step]
) -> Iterator[tuple[_Step | None, _Step | None]]:
    """Yield the steps of two executions in pairs: equal calls, then calls of the same task."""
    for is_call, ones, others in _blocks(first, second, _call_key):
        if is_call:
            yield from zip(ones, others, strict=True)
            continue
        for _, some, rest in _blocks(ones, others, _task_key):
            yield from itertools.zip_longest(some, rest)


def _blocks(
    first: Sequence[_Step], second: Sequence[_Step], key: Callable[[_Step], Hashable]
) -> Iterator[tuple[bool, Sequence[_Step], Sequence[_Step]]]:
    """Yield blocks of both sequences, and whether the keys of their steps are equal.

    Takes linear time, except for the part between the first and the last difference.
    """
    ones, others = [*map(key, first)], [*map(key, second)]
    head = _common_length(ones, others)
    yield True, first[:head], second[:head]
    tail = _common_length(ones[head:][::-1], others[head:][::-1])
    ends = len(ones) - tail, len(others) - tail
    matcher = difflib.SequenceMatcher(None, ones[head : ends[0]], others[head : ends[1]])
    for operation, a, b, c, d in matcher.get_opcodes():
        yield operation == "equal", first[head + a : head + b], second[head + c : head + d]
    yield True, first[ends[0] :], second[ends[1] :]


def _task_key(step: _Step) -> Hashable:
    return step.note.task


def _call_key(step: _Step) -> Hashable:
    return step.note.task, step.note.digest


def _common_length(ones: Sequence[Hashable], others: Sequence[Hashable]) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(ones, others, strict=False))
    differing = (number for number, (one, other) in pairs if one != other)
    return next(differing, min(len(ones), len(others)))


def _encoded(value: Any) -> object:
    if value is _MISSING:
        return value
    try:
        return codec.dumps(value)
    except exceptions.NotEncodable:  # It is not known in this process.
        return repr(value)
