"""Suspending and resuming from a page, and being refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, accessible, is_the_same, marked
from tests.browser.stage import Stage
from tests.dashboard import story
from wbengine.dashboard import Site

pytestmark = pytest.mark.timeout(280)


def test_a_flow_is_suspended_and_resumed(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        state = page.locator("#head h1 + .badge")
        page.get_by_role("button", name="Suspend").click()
        expect(page.get_by_text("asked to suspend it")).to_be_visible()
        expect(state).to_have_text(re.compile("SUSPENDING"))
        flow.let_go()
        expect(state).to_have_text(re.compile("SUSPENDED"))
        stage.finish()
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(2)
        page.get_by_role("button", name="Resume").click()  # in a process of its own
        expect(page.get_by_text("is being resumed")).to_be_visible()
        expect(state).to_have_text(re.compile("SUCCESS"))
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(3)
        expect(page.get_by_role("button", name="Suspend")).to_have_count(0)


@pytest.mark.slow
def test_a_cancelled_flow_is_asked_about_first(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.get_by_role("button", name="Cancel").click()
        assert asked == ["Cancel this flow, and revert what it has done?"]
        assert page.url.endswith(flow)  # nothing was sent
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("asked to cancel it")).to_be_visible()
        expect(page.get_by_text("Asked for:")).to_have_count(0)  # it was heard
        flow.let_go()
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("REVERTED"))


@pytest.mark.slow
def test_what_failed_is_tried_again(
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
    expect(page.get_by_text("is being tried again")).to_be_visible()
    marked(page)
    expect(state).to_have_text(re.compile("SUCCESS"))
    expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(3)
    expect(page.locator("#head").get_by_text("nobody has confirmed it")).to_have_count(0)
    expect(page.get_by_role("button", name="Retry failed")).to_have_count(0)
    assert is_the_same(page)


@pytest.mark.slow
def test_a_suspended_flow_is_reverted(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting, f"flows/{flow}")
        page.get_by_role("button", name="Suspend").click()
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("SUSPENDING"))
        flow.let_go()
        expect(state).to_have_text(re.compile("SUSPENDED"))
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.get_by_role("button", name="Revert").click()
    expect(page.get_by_text("is being reverted")).to_be_visible()
    assert asked == ["Revert all that this flow has done?"]
    marked(page)
    expect(state).to_have_text(re.compile("REVERTED"))
    expect(page.locator("tr[data-uuid] .badge.state-REVERTED")).to_have_count(2)
    expect(page.get_by_role("button", name="Revert")).to_have_count(0)
    assert is_the_same(page)


@pytest.mark.slow
def test_without_leave_there_is_nothing_to_press(stage: Stage, site: Site, opened: Opener) -> None:
    with stage.held() as uuid:
        page = opened(site, f"flows/{uuid}")
        expect(page.get_by_text("Read-only")).to_be_visible()
        assert page.locator("#main form").count() == 0
        answer = page.request.post(
            f"{site.address}flows/{uuid}/suspend",
            form={"form_token": "x"},
            headers={"origin": site.address.rstrip("/")},
        )
        assert answer.status == 403 and "--allow-actions" in answer.text()


@pytest.mark.slow
def test_a_stranger_is_asked_for_the_token(stage: Stage, site: Site, opened: Opener) -> None:
    page = opened(None)
    page.goto(f"{site.address}login")
    expect(page.get_by_role("heading", name="Who is there?")).to_be_visible()
    accessible(page)
    page.get_by_label("Token").fill(story.TOKEN)
    page.get_by_role("button", name="Come in").click()
    expect(page.get_by_role("heading", name="Flows")).to_be_visible()
    assert story.TOKEN not in page.url


@pytest.mark.slow
def test_a_worker_is_drained(acting: Site, opened: Opener) -> None:
    """The last test: there is one worker less afterwards."""
    page = opened(acting, "workers")
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(2)
    name = page.get_by_role("button", name=re.compile("^Drain ")).first.get_attribute("aria-label")
    assert name is not None
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.get_by_role("button", name=name).click()
    expect(page.get_by_text("was told to drain")).to_be_visible()
    assert asked == [f"Have {name.removeprefix('Drain ')} take nothing new, and end?"]
    marked(page)
    expect(rows).to_have_count(1)
    expect(page.get_by_role("button", name=name)).to_have_count(0)
    assert is_the_same(page)
