"""The HTML page of a report of `crash_everywhere`."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support import html_pages
from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import Report, World, crash_everywhere
from wbengine.testing._crashing import page
from wbengine.testing._crashing.matrix import START, Matrix
from wbengine.testing._crashing.schedules import (
    Action,
    At,
    Fault,
    Moment,
    Schedule,
    SignalFault,
)

bank = World("bank")


@task.task(idempotent=True)
def charge(order: str) -> None:
    bank.effect(f"charge <b>{order}")


@charge.revert
def refund(order: str) -> None:
    bank.undo(f"charge <b>{order}")


@task.task
def pack(order: str) -> str:
    return order


@task.workflow
def checkout(steps: Any, order: str) -> None:
    steps.run(charge, order=order)
    steps.map(pack, ["shoes", "socks"])
    steps.wait_for("approved", timeout=60, default=None)
    steps.run(pack, order=order)


@pytest.fixture(scope="module")
def faulty() -> Report:
    return crash_everywhere(
        checkout, {"order": "17"}, world=bank, signals={"approved": True}, budget=120
    )


@pytest.fixture(scope="module")
def right() -> Report:
    return crash_everywhere(
        lambda: linear_flow.Flow("order").add(pack()), {"order": "17"}, budget=60, max_runs=20
    )


def test_matrix_counts_each_fault_at_its_step() -> None:
    trace = [
        At(Moment.WRITE, "save_outline", "", (Fault(Action.KILL),)),
        At(Moment.START, "charge[3]", "", (Fault(Action.LOSE), Fault(Action.FAIL, 2))),
        At(Moment.AFTER_EFFECT, "bank: effect charge 3", "", (Fault(Action.LOSE),)),
        At(Moment.END, "charge[4]", "", (Fault(Action.COPY),)),
        At(Moment.WRITE, "save_changes", "", (Fault(Action.KILL),)),
    ]
    matrix = Matrix()
    matrix.add(Schedule(), trace, [])
    matrix.add(Schedule(((0, Fault(Action.KILL)),)), trace, [])
    matrix.add(Schedule(((1, Fault(Action.FAIL, 2)),)), trace, [3, 1])
    matrix.add(Schedule(((1, Fault(Action.LOSE)), (2, Fault(Action.LOSE)))), trace, [])
    matrix.add(Schedule(((4, Fault(Action.KILL)),), (("paid", SignalFault.LATE),)), trace, [2])
    # Faults that did not occur: another moment, and a run that ended before.
    matrix.add(Schedule(((3, Fault(Action.KILL)), (5, Fault(Action.KILL)))), trace, [])
    shown = {
        (step, str(fault)): (cell.runs, cell.broken, cell.findings)
        for step, cells in matrix.steps.items()
        for fault, cell in cells.items()
    }
    assert shown == {
        (START, "kill"): (1, 0, set()),
        ("charge[*]", "fail"): (1, 1, {1, 3}),
        ("charge[*]", "lose"): (2, 0, set()),
        ("charge[*]", "kill"): (1, 1, {2}),
    }
    assert matrix.signals["paid"][SignalFault.LATE].broken == 1


@pytest.mark.slow
def test_all_faults_are_in_the_matrix(faulty: Report) -> None:
    """No pairs follow if single faults break promises."""
    cells = [cell for row in faulty.matrix.steps.values() for cell in row.values()]
    cells += [cell for row in faulty.matrix.signals.values() for cell in row.values()]
    apart = 1  # All steps in processes of their own: not at one step.
    assert sum(cell.runs for cell in cells) == faulty.singles_run - apart > 50
    assert faulty.pairs_run == 0
    found = set[int]().union(*(cell.findings for cell in cells))
    assert found == set(range(len(faulty.findings)))
    for steps_of, titles in ((Action, page._FAULTS), (SignalFault, page._SIGNAL_FAULTS)):
        assert set(steps_of) == set(titles)


def test_memory_of_report_does_not_grow_with_its_runs(right: Report) -> None:
    schedule = Schedule(((0, Fault(Action.KILL)),))
    trace = [At(Moment.START, "charge", "", (Fault(Action.KILL),))]
    tracemalloc.start()
    try:
        for _ in range(10_000):
            right.matrix.add(schedule, trace, ())
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
    assert right.matrix.steps["charge"][Action.KILL].runs == 10_000


def test_page_is_well_formed_and_loads_nothing(faulty: Report, tmp_path: Path) -> None:
    faulty.save_html(tmp_path / "page.html", title="Order <17>")
    text = (tmp_path / "page.html").read_text("utf-8")
    parsed = html_pages.checked(text)
    assert "<title>Order &lt;17&gt;</title>" in text and "charge <b>" not in text
    said = "".join(parsed.said)
    assert f"{len(faulty.findings)} finding" in said
    for finding in faulty.findings:
        assert finding.problem.text in said
        assert f"only={str(finding.schedule)!r}" in said


def test_page_without_findings_says_so(right: Report, tmp_path: Path) -> None:
    right.save_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "no promise broken" in text and "finding-" not in text and ">Findings<" not in text


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_accessible_and_fits_the_window(
    browser: Any, faulty: Report, tmp_path: Path, width: int, scheme: str
) -> None:
    faulty.save_html(tmp_path / "page.html")
    window = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 860})
    heard: list[str] = []
    window.on("console", lambda message: heard.append(message.text))
    window.on("pageerror", lambda error: heard.append(str(error)))
    window.on("requestfailed", lambda request: heard.append(request.url))
    window.goto((tmp_path / "page.html").as_uri())
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert window.evaluate(fits), "it is wider than the window"
    violations = Axe().run(window)
    assert violations.violations_count == 0, violations.generate_report()
    link = window.locator("a.broken").first
    link.click()
    assert window.url.endswith("#finding-1")
    window.screenshot(path=tmp_path / "page.png", full_page=True)
    assert heard == []
    window.close()
