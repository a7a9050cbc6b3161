"""Suspending and resuming from a page, and being refused."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, accessible
from tests.browser.stage import Stage
from tests.dashboard import story
from wbengine.dashboard import Site

pytestmark = pytest.mark.timeout(120)


def test_a_flow_is_suspended_and_resumed(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held("evening") as flow:
        page = opened(acting.ticket)
        page.goto(f"{acting.address}flows/{flow}")
        state = page.locator("#head h1 + .badge")
        page.get_by_role("button", name="Suspend").click()
        expect(page.get_by_text("asked to suspend it")).to_be_visible()
        expect(state).to_have_text(re.compile("SUSPENDING"), timeout=15_000)
        flow.let_go()
        expect(state).to_have_text(re.compile("SUSPENDED"), timeout=15_000)
        stage.finish()
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).not_to_have_count(301)
        page.get_by_role("button", name="Resume").click()  # in a process of its own
        expect(page.get_by_text("is being resumed")).to_be_visible()
        expect(state).to_have_text(re.compile("SUCCESS"), timeout=60_000)
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(301)
        expect(page.get_by_role("button", name="Suspend")).to_have_count(0)


def test_a_cancelled_flow_is_asked_about_first(stage: Stage, acting: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(acting.ticket)
        page.goto(f"{acting.address}flows/{flow}")
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.get_by_role("button", name="Cancel").click()
        assert asked == ["Cancel this flow, and revert what it has done?"]
        assert page.url.endswith(flow)  # nothing was sent
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("asked to cancel it")).to_be_visible()
        expect(page.get_by_text("Asked for:")).to_have_count(0, timeout=15_000)  # it was heard
        flow.let_go()
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("REVERTED"), timeout=30_000)


def test_without_leave_there_is_nothing_to_press(stage: Stage, site: Site, opened: Opener) -> None:
    with stage.held() as uuid:
        page = opened(site.ticket)
        page.goto(f"{site.address}flows/{uuid}")
        expect(page.get_by_text("Read-only")).to_be_visible()
        assert page.locator("#main form").count() == 0
        answer = page.request.post(
            f"{site.address}flows/{uuid}/suspend",
            form={"form_token": "x"},
            headers={"origin": site.address.rstrip("/")},
        )
        assert answer.status == 403 and "--allow-actions" in answer.text()


def test_a_stranger_is_asked_for_the_token(stage: Stage, site: Site, opened: Opener) -> None:
    page = opened("about:blank")
    page.goto(f"{site.address}login")
    expect(page.get_by_role("heading", name="Who is there?")).to_be_visible()
    accessible(page)
    page.get_by_label("Token").fill(story.TOKEN)
    page.get_by_role("button", name="Come in").click()
    expect(page.get_by_role("heading", name="Flows")).to_be_visible()
    assert story.TOKEN not in page.url
