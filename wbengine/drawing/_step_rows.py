"""Rows of text for the steps of a workflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from wbengine import states
from wbengine.drawing import _box_text, _styles
from wbengine.running import LOCAL
from wbengine.views import _formatting
from wbengine.views._atoms import StepsView, StepView

__all__ = ["Row", "rows"]

_STATES_WITHOUT_WORD: Final = frozenset({states.SUCCESS, states.PENDING, states.RUNNING})


class Row(NamedTuple):
    """A row.

    :ivar state: state of the step; None if the row describes several steps.
    :ivar position: position of the first step that the row describes.
    :ivar step: the step; None if the row describes several steps.
    """

    state: str | None
    text: str
    position: int
    step: StepView | None = None


def rows(steps: StepsView, limit: int | None = None) -> Sequence[Row]:
    """Return the rows of the steps.

    :param limit: maximum number of rows, at least 2: the latest ones are returned,
        without earlier attempts. None: no limit.
    """
    all_rows = [row for step in steps.shown for row in _rows_of(step)]
    if limit is None:
        return [*_earlier_attempts(steps), *all_rows]
    if len(all_rows) <= limit:
        return all_rows
    latest = all_rows[-(limit - 1) :]
    earlier = _formatting.count(latest[0].position, "earlier step")
    return [Row(None, f"... {earlier}", 0), *latest]


def _earlier_attempts(steps: StepsView) -> Iterator[Row]:
    if steps.continued:
        times = "once" if steps.continued == 1 else f"{steps.continued:,} times"
        yield Row(None, f"continued as new {times}: the steps before are final", 0)
    for earlier in steps.earlier:
        total = _formatting.count(sum(earlier.counts.values()), "step")
        counts = _box_text.counted(earlier.counts)
        yield Row(None, f"attempt {earlier.attempt}: {total}: {counts}", 0)


def _rows_of(step: StepView) -> Iterator[Row]:
    start = step.position - (step.repeated - 1) * len(step.loop)
    if step.omitted:
        text = f"... {_formatting.count(step.omitted, 'more step')}"
        yield Row(None, text, start - step.omitted)
    if step.loop:
        yield Row(None, f"{step.repeated:,} x {', '.join(step.loop)}; the latest:", start)
    yield Row(step.shown_state, "  ".join(_parts(step)), step.position, step)


def _parts(step: StepView) -> Iterator[str]:
    yield f"{step.position} {step.name}"
    if step.waiting is None and step.shown_state not in _STATES_WITHOUT_WORD:
        yield _styles.word(step.shown_state)
    if step.inherited is not None:
        yield "inherited"
    if step.executions > 1:
        yield f"attempt {step.executions}"
    if step.elapsed is not None:
        yield _formatting.seconds(step.elapsed)
    elif took := _formatting.took(step.execution_runtime, step.reversion_runtime):
        yield took
    if step.worker not in (None, LOCAL):
        yield f"on {step.worker}"
    if step.error is not None:
        yield _box_text.shortened(step.error, 160)
    if step.waiting is not None:
        yield step.waiting
