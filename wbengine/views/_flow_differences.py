"""Where two runs part: the differences between the records of two flows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

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

    :ivar kind: 'value' of an input; 'presence' or 'version' of a task; 'call', 'arguments' or
        'signal' of a step; 'state', 'failure' or 'result' of a task or step.
    :ivar where: name of the input or task, or position and name of the step.
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
            steps = _pairs(_steps(first, one), _steps(second, other))
            for position, step, other_step in sorted(steps, key=lambda pair: pair[0]):
                comparing.step(f"step {position} of {name!r}", step, other_step)
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

    def step(self, where: str, one: Any, other: Any) -> None:
        """Compare two records of steps: the first difference counts."""
        if one is _MISSING or other is _MISSING:
            self._add("call", where, self._call(one), self._call(other))
            return
        mine, theirs = StepNote.of(one), StepNote.of(other)
        if mine is None or theirs is None:
            return
        calls = self._call(one), self._call(other)
        if mine.task != theirs.task:
            self._add("call", where, *calls)
        elif mine.digest != theirs.digest:
            self._add("arguments", where, *calls)
        else:
            self._count(
                self._texts("signal", where, mine.signal, theirs.signal)
                or self._outcome(where, one, other)
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

    def _call(self, record: Any) -> str | None:
        note = None if record is _MISSING else StepNote.of(record)
        if note is None:
            return None
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


def _steps(flow: models.FlowDetail, workflow: models.AtomDetail) -> dict[int, models.AtomDetail]:
    """Return the steps of the latest execution of a workflow, by position."""
    notes = [(StepNote.of(record), record) for record in flow if record.is_step]
    own = [(note, each) for note, each in notes if note and note.workflow == workflow.uuid]
    latest = max((note.attempt for note, _ in own), default=0)
    return {note.position: record for note, record in own if note.attempt == latest}


def _encoded(value: Any) -> object:
    if value is _MISSING:
        return value
    try:
        return codec.dumps(value)
    except exceptions.NotEncodable:  # It is not known in this process.
        return repr(value)
