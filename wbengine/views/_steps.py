"""Views of the steps of workflows. Loops, and earlier attempts of a workflow, are folded."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from wbengine import states
from wbengine.persistence import _history, models
from wbengine.persistence._step_notes import StepNote
from wbengine.views import _waiting
from wbengine.views._atoms import EarlierSteps, Reason, StepsView, StepView, shown_state_of_step
from wbengine.views.redaction import Redactor

__all__ = [
    "Repetition",
    "fold",
    "shorten",
    "steps_of",
    "view_of",
    "waiting_steps",
]

#: Maximum number of steps of a loop body.
_MAX_BODY: Final = 8
#: Minimum number of iterations of a loop that is folded.
_MIN_ITERATIONS: Final = 3
#: Maximum number of folded parts of a workflow: the first ones and the latest ones.
_FIRST_PARTS: Final = 20
_LATEST_PARTS: Final = 60
_RUNNING_STATES: Final = frozenset({states.RUNNING, states.REVERTING})


class Repetition(NamedTuple):
    """A sequence of `length` steps that occurs `times` times in succession.

    :ivar start: index of the first step.
    """

    start: int
    length: int
    times: int

    @property
    def latest(self) -> range:
        """The indexes of the latest occurrence."""
        end = self.start + self.length * self.times
        return range(end - self.length, end)


def fold(keys: Sequence[Hashable]) -> list[Repetition]:
    """Divide a sequence into repetitions of loop bodies, and single elements.

    A body has at most `_MAX_BODY` elements, and occurs at least `_MIN_ITERATIONS` times. At each
    position, the repetition with the most elements is chosen; of equal ones, that with the shortest
    body.

    >>> fold("abcbcbcd")
    [Repetition(start=0, length=1, times=1), Repetition(start=1, length=2, times=3), \
Repetition(start=7, length=1, times=1)]
    """
    parts: list[Repetition] = []
    start = 0
    while start < len(keys):
        best = Repetition(start, 1, 1)
        for length in range(1, _MAX_BODY + 1):
            count = _occurrences(keys, start, length)
            if count >= _MIN_ITERATIONS and count * length > best.times * best.length:
                best = Repetition(start, length, count)
        parts.append(best)
        start += best.length * best.times
    return parts


def _occurrences(keys: Sequence[Hashable], start: int, length: int) -> int:
    same = start + length
    while same < len(keys) and keys[same] == keys[same - length]:
        same += 1
    return (same - start) // length


def shorten(parts: Sequence[Repetition]) -> tuple[Sequence[Repetition], Sequence[Repetition]]:
    """Return the first and the latest parts. The parts between them are omitted.

    If no part is omitted, the second sequence is empty.
    """
    if len(parts) <= _FIRST_PARTS + _LATEST_PARTS:
        return parts, ()
    return parts[:_FIRST_PARTS], parts[-_LATEST_PARTS:]


def steps_of(
    records: Iterable[models.AtomDetail], redactor: Redactor, situation: _waiting.Situation
) -> dict[str, StepsView]:
    """Return the views of the steps by the uuid of their workflow. Cost: O(steps).

    :param records: records of a flow; those that are not records of steps are ignored.
    """
    all_records = list(records)
    views = {
        workflow: _steps_view(by_attempt, redactor, situation)
        for workflow, by_attempt in _by_attempt(all_records).items()
    }
    for record in all_records if views else ():
        continued = record.meta_value(models.CONTINUED)
        if continued and record.uuid in views:
            views[record.uuid] = views[record.uuid]._replace(
                continued=continued.get("number", 0), continued_at=continued.get("at")
            )
    return views


def waiting_steps(records: Iterable[models.AtomDetail]) -> dict[str, models.AtomDetail]:
    """Return the workflows whose incomplete steps all wait for a signal or a time.

    :returns: the record of the first incomplete step by the uuid of the workflow.
    """
    waiting_records: dict[str, models.AtomDetail] = {}
    for workflow, by_attempt in _by_attempt(records).items():
        steps = by_attempt[max(by_attempt)]
        incomplete = [step for step in steps if step.note.completed is None]
        incomplete.sort(key=lambda step: step.position)
        if incomplete and all(step.record.waits_for is not None for step in incomplete):
            waiting_records[workflow] = incomplete[0].record
    return waiting_records


def _by_attempt(
    records: Iterable[models.AtomDetail],
) -> Mapping[str, Mapping[int, list[_StepRecord]]]:
    attempts: defaultdict[str, defaultdict[int, list[_StepRecord]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        note = StepNote.of(record) if record.is_step else None
        if note is not None:
            attempts[note.workflow][note.attempt].append(_StepRecord(note.position, record, note))
    return attempts


class _StepRecord(NamedTuple):
    position: int
    record: models.AtomDetail
    note: StepNote

    @property
    def name(self) -> str:
        """The name without the name of the workflow, attempt and position."""
        return self.note.short_name(self.record.name)

    @property
    def state(self) -> str:
        return self.record.state or states.PENDING

    def reason(self, situation: _waiting.Situation) -> Reason | None:
        """Return why the step does not run; None if it runs or is complete."""
        note = self.note
        if note.completed is not None:
            return None
        return _waiting.step_reason(self.record, note.task.replace(":", "."), note.limit, situation)

    def is_queued(self, situation: _waiting.Situation) -> bool:
        record = self.record
        return (
            self.note.completed is None
            and self.state in _RUNNING_STATES
            and situation.is_run
            and record.started is None
            and record.progress is None
            and (situation.on_workers or situation.in_pool)
        )


def _steps_view(
    by_attempt: Mapping[int, list[_StepRecord]], redactor: Redactor, situation: _waiting.Situation
) -> StepsView:
    latest = max(by_attempt)
    recorded = sorted(by_attempt[latest], key=lambda step: step.position)
    names = redactor.texts([step.name for step in recorded])
    reasons = [step.reason(situation) for step in recorded]
    # A step that failed, runs or waits is never folded into complete ones.
    keys = [
        (name, step.state, reason is not None or step.is_queued(situation))
        for name, step, reason in zip(names, recorded, reasons, strict=True)
    ]
    parts = fold(keys)
    first, last = shorten(parts)
    omitted = last[0].start - first[-1].latest.stop if last else 0
    shown: list[StepView] = []
    for part in itertools.chain(first, last):
        for index in part.latest:
            view = _step_view(recorded[index], names[index], reasons[index], redactor, situation)
            if index == part.latest.start:
                view = view._replace(
                    loop=tuple(names[each] for each in part.latest) if part.times > 1 else (),
                    omitted=omitted if last and part is last[0] else 0,
                )
            shown.append(view._replace(repeated=part.times))
    earlier = [
        EarlierSteps(attempt, Counter(step.state for step in steps))
        for attempt, steps in sorted(by_attempt.items())
        if attempt != latest
    ]
    counts = Counter(step.state for step in recorded)
    shown_counts = Counter(
        shown_state_of_step(step.state, reason is not None, step.is_queued(situation))
        for step, reason in zip(recorded, reasons, strict=True)
    )
    reason = _common_reason(recorded, names, reasons)
    return StepsView(latest, counts, tuple(shown), tuple(earlier), reason, shown_counts)


def _common_reason(
    recorded: Iterable[_StepRecord],
    names: Iterable[str],
    reasons: Iterable[Reason | None],
) -> Reason | None:
    """Return the reason of the first incomplete step, if all incomplete steps wait."""
    first: Reason | None = None
    for step, name, reason in zip(recorded, names, reasons, strict=True):
        if step.note.completed is not None:
            continue
        if reason is None:
            return None
        if first is None:
            first = reason._replace(text=f"Step {step.position} {name}: {reason.text}")
    return first


def view_of(
    record: models.AtomDetail, note: StepNote, redactor: Redactor, situation: _waiting.Situation
) -> tuple[StepView, Reason | None]:
    """Return the view of one step, and the reason why it does not run."""
    step = _StepRecord(note.position, record, note)
    reason = step.reason(situation)
    return _step_view(step, redactor.text(step.name), reason, redactor, situation), reason


def _step_view(
    step: _StepRecord,
    name: str,
    reason: Reason | None,
    redactor: Redactor,
    situation: _waiting.Situation,
) -> StepView:
    record = step.record
    failure = record.revert_failure or record.failure
    is_queued = step.is_queued(situation)
    elapsed = None
    if situation.is_run and record.started is not None and step.state in _RUNNING_STATES:
        elapsed = max(0.0, situation.now - record.started)
    return StepView(
        record.uuid,
        name,
        step.position,
        step.state,
        record.executions,
        None if record.worker is None else redactor.text(record.worker),
        record.submitted,
        record.started,
        record.ended,
        None if failure is None else redactor.text(_history.one_line(failure)),
        None if reason is None else redactor.text(_phrase(reason.text)),
        elapsed=elapsed,
        queued=is_queued,
        execution_runtime=_history.latest_runtime(record.all_attempts, "execute"),
        reversion_runtime=(
            _history.runtime(record.started, record.ended) if record.action == "revert" else None
        ),
        called=record.past[0].submitted if record.past else record.submitted,
        completed=step.note.at,
        execution_start=_history.latest_start(record.all_attempts, "execute"),
        inherited=record.inherited_from,
    )


def _phrase(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].removesuffix(".")
