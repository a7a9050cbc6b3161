"""Actions and forms of pages in a browser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, accessible, is_the_same, marked
from tests.browser.stage import TASKS, Stage
from tests.dashboard import story
from tests.dashboard.site import running
from tests.support import typed_orders
from tests.support.failed_flows import store_flows
from tests.support.waiting import until
from wbengine.conductors import _bulks
from wbengine.dashboard import Site
from wbengine.engines import _allowed
from wbengine.persistence import backends, base
from wbengine.schedules import Schedule, Schedules


@pytest.mark.slow
def test_suspend_and_resume_buttons_control_the_flow(
    stage: Stage, acting: Site, opened: Opener
) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        state = page.locator("#head h1 + .badge")
        page.get_by_role("button", name="Suspend").click()
        expect(page.get_by_text("asked to suspend the flow")).to_be_visible()
        expect(state).to_have_text(re.compile("SUSPENDING"))
        stage.await_suspend_command(flow)
        flow.let_go()
        expect(state).to_have_text(re.compile("SUSPENDED"))
        stage.finish()
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(2)
        page.get_by_role("button", name="Resume").click()  # in a separate process
        expect(page.get_by_text("is being resumed")).to_be_visible()
        expect(state).to_have_text(re.compile("SUCCESS"))
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(3)
        expect(page.get_by_role("button", name="Suspend")).to_have_count(0)


def test_task_type_is_paused_and_resumed_from_the_page(
    stage: Stage, acting: Site, opened: Opener
) -> None:
    task_type = f"{TASKS}.Step"
    page = opened(acting, "pauses")
    expect(page.get_by_text("No task types are paused")).to_be_visible()
    page.get_by_role("textbox", name="Task type").fill(task_type)
    page.get_by_role("textbox", name="Reason").fill("the tills are counted")
    page.get_by_label("Length").select_option("for 1 hour")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("The task type is paused.")).to_be_visible()
    row = page.locator("#pauses tbody tr")
    expect(row).to_contain_text(task_type)
    expect(row).to_contain_text("the tills are counted")
    accessible(page)
    with stage.held(reached=False) as flow:
        flow_page = opened(acting, f"flows/{flow}")
        expect(flow_page.get_by_text("Its task type is paused by dashboard").first).to_be_visible()
        page.get_by_role("button", name=f"Resume: {task_type}").click()
        expect(page.get_by_text("The task type is resumed.")).to_be_visible()
        expect(row).to_have_count(0)
        flow.let_go()
        state = flow_page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("SUCCESS"))


def test_operation_on_all_matching_flows_is_confirmed_and_followed(
    stage: Stage, acting: Site, opened: Opener
) -> None:
    uuids = store_flows(stage.backend, 3, tags={"shop": "paris"})
    page = opened(acting)
    page.goto(f"{acting.address}?find=shop%3Dparis")
    page.get_by_label("Operation", exact=True).select_option("Retry")
    page.get_by_role("button", name="Apply to all matching flows").click()
    expect(page.get_by_role("heading", name="3 flows")).to_be_visible()
    accessible(page)
    page.get_by_label("Reason").fill("release 43")
    page.get_by_label("Flows per second").fill("50")
    page.get_by_role("button", name="Retry 3 flows").click()
    expect(page.get_by_text("The operation is stored.")).to_be_visible()
    expect(page.get_by_text("0 of 3 flows done")).to_be_visible()
    accessible(page)
    service = _bulks.BulkService(stage.backend, "serve")
    with contextlib.closing(stage.backend.get_connection()) as connection:
        until(lambda: service.run_due() >= 0 and len(connection.commands(uuids)) == 3)
    expect(page.get_by_text("3 of 3 flows done, 0 skipped")).to_be_visible()
    page.get_by_role("link", name="Operations").click()
    expect(page.locator("#bulks tbody tr").first).to_contain_text("release 43")
    accessible(page)


@pytest.mark.slow
def test_past_times_of_a_schedule_are_shown_and_confirmed(
    tmp_path: Path, opened: Opener, request: pytest.FixtureRequest
) -> None:
    _allowed.set_for_process([TASKS])
    request.addfinalizer(lambda: _allowed.set_for_process(None))
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        schedules = Schedules(backend)
        schedules.declare(Schedule(name="nightly", factory=f"{TASKS}:morning", every=86400))
        with running(backend, allow_actions=True) as site:
            page = opened(site, "schedules")
            page.get_by_role("link", name="Backfill: nightly").click()
            page.get_by_label("First time").fill("2026-01-01")
            page.get_by_label("Last time").fill("2026-01-02T12:00")
            page.get_by_role("button", name="Show times").click()
            expect(page.get_by_role("heading", name="2 times without a flow")).to_be_visible()
            accessible(page)
            page.get_by_role("button", name="Submit 2 flows").click()
            expect(page.get_by_text("The flows are submitted.")).to_be_visible()
            missed, _ = schedules.missed_page("nightly", 1767225600, 1767398400, limit=9)
            assert missed == [1767398400], "2026-01-03"
            page.close()  # before its server stops


@pytest.mark.slow
def test_cancel_button_asks_for_confirmation(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.get_by_role("button", name="Cancel").click()
        assert asked == ["Cancel this flow and revert its completed tasks?"]
        assert page.url.endswith(flow)  # nothing was sent
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("asked to cancel the flow")).to_be_visible()
        stage.await_cancel_command(flow)
        flow.let_go()
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("CANCELLED"))


@pytest.mark.slow
def test_retry_button_retries_a_failed_flow(
    stage: Stage, acting: Site, opened: Opener, tmp_path: Path
) -> None:
    gate = tmp_path / "confirmed"
    uuid = stage.begin("delivery", {"gate": str(gate)})
    stage.finish(uuid)
    page = opened(acting, f"flows/{uuid}")
    state = page.locator("#head h1 + .badge")
    expect(state).to_have_text(re.compile("REVERTED"))
    expect(page.locator("#head").get_by_text("nobody has confirmed it")).to_be_visible()
    gate.touch()
    page.get_by_role("button", name="Retry failed").click()
    expect(page.get_by_text("are being retried")).to_be_visible()
    marked(page)
    expect(state).to_have_text(re.compile("SUCCESS"))
    expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(3)
    expect(page.locator("#head").get_by_text("nobody has confirmed it")).to_have_count(0)
    expect(page.get_by_role("button", name="Retry failed")).to_have_count(0)
    assert is_the_same(page)


@pytest.mark.slow
def test_revert_button_reverts_a_suspended_flow(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        page.get_by_role("button", name="Suspend").click()
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("SUSPENDING"))
        stage.await_suspend_command(flow)
        flow.let_go()
        expect(state).to_have_text(re.compile("SUSPENDED"))
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.get_by_role("button", name="Revert").click()
    expect(page.get_by_text("is being reverted")).to_be_visible()
    assert asked == ["Revert all completed tasks of this flow?"]
    marked(page)
    expect(state).to_have_text(re.compile("CANCELLED"))
    expect(page.locator("tr[data-uuid] .badge.state-REVERTED")).to_have_count(2)
    expect(page.get_by_role("button", name="Revert")).to_have_count(0)
    assert is_the_same(page)


@pytest.mark.slow
def test_login_page_accepts_the_token(stage: Stage, site: Site, opened: Opener) -> None:
    page = opened(None)
    page.goto(f"{site.address}login")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    accessible(page)
    page.get_by_label("Token").fill(story.TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Flows")).to_be_visible()
    assert story.TOKEN not in page.url


@pytest.mark.slow
def test_drain_button_drains_the_worker(acting: Site, opened: Opener) -> None:
    """This test is the last one, because it removes a worker."""
    page = opened(acting, "workers")
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(2)
    name = page.get_by_role("button", name=re.compile("^Drain: ")).first.get_attribute("aria-label")
    assert name is not None
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.get_by_role("button", name=name).click()
    expect(page.get_by_text("is draining")).to_be_visible()
    question = name.replace("Drain: ", "Drain ")
    assert asked == [f"{question}? It finishes its running tasks and ends."]
    marked(page)
    expect(rows).to_have_count(1)
    expect(page.get_by_role("button", name=name)).to_have_count(0)
    assert is_the_same(page)


FLOWS = typed_orders.__name__
SIZES: dict[str, Any] = {
    "desktop": {},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened_store:
        yield opened_store


@pytest.fixture
def starting(store: base.Backend) -> Iterator[Site]:
    _allowed.set_for_process([FLOWS])
    with running(store, allow_actions=True) as site:
        yield site
    _allowed.set_for_process(None)


@pytest.mark.slow
@pytest.mark.parametrize("size", list(SIZES))
def test_flow_is_started_after_faults_were_corrected(
    starting: Site, store: base.Backend, opened: Opener, size: str
) -> None:
    page = opened(starting, sends_faults=True)
    if "viewport" in SIZES[size]:
        page.set_viewport_size(SIZES[size]["viewport"])
    page.get_by_role("link", name="Start a flow").click()
    page.get_by_label("A flow, a workflow").fill(f"{FLOWS}:shipping")
    page.get_by_role("button", name="Show inputs").click()
    order = page.get_by_role("textbox", name="order")
    order.fill('{"number": "7", "lines": []}')
    page.get_by_role("textbox", name="customer").fill("Ann")
    expect(page.get_by_role("checkbox", name="insured")).to_be_checked()
    page.get_by_role("combobox", name="speed").select_option("fast")
    page.get_by_role("button", name="Start", exact=True).click()
    # The browser refuses the form, because a required field is empty.
    assert page.evaluate("document.activeElement.name") == "inputs:boxes"
    page.get_by_role("spinbutton", name="boxes").fill("2")
    accessible(page)
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], f"the page is {width[0]} px wide"
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The flow is not started.")
    field = page.locator('[name="inputs:order"]')
    expect(field).to_have_accessible_description(
        re.compile(r"inputs\['order'\].number: expected int, got '7'")
    )
    accessible(page)
    page.get_by_role("alert").get_by_role("link", name="order").click()
    expect(page.get_by_role("combobox", name="speed")).to_have_value('"fast"')
    field.fill('{"number": 7, "lines": []}')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text("The flow is submitted.")).to_be_visible()
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(limit=2).flows
        detail = connection.get_flow_details(row.uuid)
    assert detail.uuid in page.url
    (values,) = [atom.results for atom in detail if atom.results]
    assert values["speed"] is typed_orders.Speed.FAST
    page.close()  # before its server stops
