"""Steps of workflows in timelines and reports, without effect on the numbers of tasks."""

from __future__ import annotations

import contextlib
import re

import pytest

from tests.support import shown_workflows
from wbengine import engines, report, states
from wbengine.persistence import backends
from wbengine.views import _timeline, flow_status


def view_of(workflow: type) -> flow_status.FlowView:
    with backends.backend("memory://") as backend:
        engine = engines.load(workflow, backend=backend)
        with contextlib.suppress(ConnectionError):
            engine.run()
        return flow_status.view(engine.storage.flow_detail, now=engine.storage.flow_detail.created)


@pytest.fixture(scope="module")
def undone() -> flow_status.FlowView:
    return view_of(shown_workflows.undone)


def test_timeline_contains_bars_of_steps(undone: flow_status.FlowView) -> None:
    (lane,) = _timeline.timeline(undone).lanes
    steps = {bar.name: (bar.state, bar.action) for bar in lane.bars if bar.is_step}
    assert steps == {
        "undone / 0 book": (states.REVERTED, "revert"),
        "undone / 1 ship": (states.REVERTED, "revert"),
    }


def test_timeline_contains_the_latest_iteration_of_a_loop() -> None:
    shown = view_of(shown_workflows.looped)
    (lane,) = _timeline.timeline(shown).lanes
    steps = [bar.name for bar in lane.bars if bar.is_step]
    assert steps == ["looped / 9 poll (latest of 10)"]


def test_steps_are_not_counted_as_attempts(undone: flow_status.FlowView) -> None:
    chart = _timeline.timeline(undone)
    assert [lane.attempts for lane in chart.lanes] == [2]  # execution and reversion
    bars = [bar for lane in chart.lanes for bar in lane.bars if not bar.is_step]
    assert sum(lane.busy for lane in chart.lanes) == sum(bar.seconds for bar in bars)


def test_suspended_workflow_ends_in_the_timeline_when_suspended() -> None:
    with backends.backend("memory://") as backend:
        engine = engines.load(shown_workflows.looped, backend=backend)
        engine.atom_notifier.register(states.SUCCESS, lambda *_, **__: engine.suspend())
        engine.run()
        detail = engine.storage.flow_detail
    shown = flow_status.view(detail, now=(detail.created or 0.0) + 3600)
    assert shown.state == states.SUSPENDED
    assert _timeline.timeline(shown).seconds < 600
    (atom,) = shown.atoms
    text = "Continues behind its complete steps when an engine runs the flow."
    assert atom.waiting == text


def test_report_lists_steps_and_counts_one_atom(undone: flow_status.FlowView) -> None:
    page = report.html(undone)
    assert "A flow of <b>1</b> atom" in page
    section = page[page.index('<section id="steps"') :]
    assert "2 steps of 1 workflow." in section
    assert re.search("undone / 1 ship.*reverted.*ConnectionError: no answer &lt;img", section)
    assert "<img" not in page
