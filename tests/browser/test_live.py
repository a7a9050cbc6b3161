"""Live updates of pages for a flow of 300 tasks on two workers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Route, expect

from tests.browser.conftest import Opener, accessible, is_the_same, marked
from tests.browser.stage import Stage
from tests.support.browsers import PATIENCE
from wbengine.dashboard import Site, _cache


def looks_away(page: Page, away: bool) -> None:
    """Simulate a hidden or visible tab: a hidden page closes its stream and reopens it later."""
    page.evaluate(
        "away => {Object.defineProperty(document, 'hidden', {value: away, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))}",
        away,
    )


@pytest.mark.slow
def test_task_states_are_updated_live(stage: Stage, site: Site, opened: Opener) -> None:
    with stage.held("evening", reached=False) as flow:
        page = opened(site, f"flows/{flow}")
        marked(page)
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("tr[data-uuid]")).to_have_count(301)
        done = page.locator("tr[data-uuid] .badge.state-SUCCESS")
        expect(done).to_have_count(150, timeout=2 * PATIENCE)
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("RUNNING"))
        expect(page.locator("tr[data-uuid] .badge.state-RUNNING")).to_have_count(1)
        flow.let_go()
        expect(done).to_have_count(301, timeout=2 * PATIENCE)
        expect(state).to_have_text(re.compile("SUCCESS"))
        expect(page.locator("#head .legend")).to_have_text(re.compile("301 SUCCESS"))
        expect(page.locator("#said")).to_have_text("The flow ended in state SUCCESS")
        workers = {
            text for text in page.locator("tr [data-field=worker]").all_inner_texts() if text
        }
        assert len(workers) == 2
        assert is_the_same(page)


@pytest.mark.slow
def test_graph_is_updated_live(stage: Stage, site: Site, opened: Opener) -> None:
    with stage.held() as flow:
        page = opened(site, f"flows/{flow}/graph")
        marked(page)
        expect(page.locator(".wbe-graph .atom[data-uuid]")).to_have_count(3)
        running = page.locator(".wbe-graph .atom.state-RUNNING")
        expect(running).to_have_count(1)
        expect(running.locator(".name")).to_have_text("▶ count the money")
        flow.let_go()
        expect(page.locator(".wbe-graph .atom.state-SUCCESS")).to_have_count(3)
        expect(page.locator(".wbe-graph .icon", has_text="▶")).to_have_count(0)
        assert is_the_same(page)


@pytest.mark.slow
def test_flow_list_and_workers_page_are_updated_live(
    stage: Stage, site: Site, opened: Opener
) -> None:
    page, workers = opened(site), opened(site)
    workers.goto(f"{site.address}workers")
    for each in (page, workers):
        expect(each.locator("#live")).to_have_text("Live")
        marked(each)
    with stage.held() as uuid:
        row = page.locator(f"#r-{uuid}")
        expect(row.locator(".badge")).to_have_text(re.compile("RUNNING"))
        expect(workers.locator(".badge.state-busy")).to_be_visible(timeout=20_000)
        expect(workers.get_by_role("cell", name=re.compile("count the money"))).to_be_visible()
    expect(row.locator(".badge")).to_have_text(re.compile("SUCCESS"))
    expect(workers.locator(".badge.state-idle")).to_have_count(2)
    assert is_the_same(page) and is_the_same(workers)


@pytest.mark.slow
def test_updates_arrive_in_the_stream_without_further_requests(
    stage: Stage, site: Site, opened: Opener
) -> None:
    """The stream updates the rows of the list in order, and the head of a flow without actions."""
    with stage.held():  # the list is not empty
        pass
    lists, asked = opened(site), list[str]()
    expect(lists.locator("#live")).to_have_text("Live")
    with stage.held() as flow:
        page = opened(site, f"flows/{flow}")
        expect(page.locator("#live")).to_have_text("Live")
        for each in (lists, page):
            marked(each)
            each.on("request", lambda request: asked.append(request.url))
        expect(lists.locator("#rows tbody tr").first).to_have_id(f"r-{flow}")
        flow.let_go()
        stage.finish()
        done = page.locator("#facts .legend")
        expect(done).to_have_text(re.compile("3 SUCCESS"))
        row = lists.locator(f"#r-{flow}")
        expect(row.locator(".badge")).to_have_text(re.compile("SUCCESS"))
        expect(row).to_have_text(re.compile("3 of 3"))
        expect(page.locator("#head h1 + .badge")).to_have_text(re.compile("SUCCESS"))
    assert not [url for url in asked if "part=rows" in url]
    assert len([url for url in asked if "part=head" in url]) <= 2  # for its changed states
    assert is_the_same(page) and is_the_same(lists)


@pytest.mark.slow
def test_hidden_page_receives_missed_updates_when_visible(
    stage: Stage, site: Site, opened: Opener
) -> None:
    with stage.held() as flow:
        page = opened(site, f"flows/{flow}")
        marked(page)
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("tr[data-uuid] .badge.state-RUNNING")).to_have_count(1)
        # Late requests for parts must not provide the update.
        page.route("**/*part=*", lambda route: route.fulfill(status=204))
        looks_away(page, True)
        flow.let_go()
        stage.finish()
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(1)
        looks_away(page, False)
        expect(page.locator("tr[data-uuid] .badge.state-SUCCESS")).to_have_count(3)
        assert is_the_same(page)


#: Script that marks the page when a request for its body after the end of the flow has completed or
#: failed.
_ANSWERED = """() => {
  const ended = () => document.getElementById("said").textContent.includes("ended in state");
  const late = new Set();
  document.addEventListener("htmx:before:request", ({detail: {ctx}}) => {
    if (ctx.request.action.includes("part=body") && ended()) late.add(ctx);
  });
  document.addEventListener("htmx:finally:request", ({detail: {ctx}}) => {
    if (late.has(ctx)) document.body.dataset.answered = "";
  });
}"""


@pytest.mark.slow
def test_final_state_is_shown_although_its_view_is_costly(
    stage: Stage, site: Site, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache, "COSTLY_SECONDS", -1.0)
    with stage.held() as flow:
        page = opened(site, f"flows/{flow}/timeline")
        marked(page)
        page.evaluate(_ANSWERED)
        attempts = page.locator(".wbe-chart .attempt")
        expect(page.locator("#live")).to_have_text("Live")
        expect(attempts).to_have_count(2)
        with _cache._COSTLY_BUILD_LOCK:  # no view can be built
            flow.let_go()
            expect(page.locator("body[data-answered]")).to_have_count(1)
            expect(attempts).to_have_count(2)
        # No further event occurs.
        expect(attempts).to_have_count(3)
        assert is_the_same(page)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Yield a context whose pages may log errors, since requests fail on purpose."""
    with contextlib.closing(browser.new_context()) as browser_context:
        browser_context.set_default_timeout(PATIENCE)
        yield browser_context


#: Script that simulates an outdated response with a refresh after an hour.
_BEHIND = """() => {
  const response = {status: 200, headers: new Headers({refresh: "3600"})};
  document.dispatchEvent(new CustomEvent("htmx:after:request", {detail: {ctx: {response}}}));
}"""

REFUSALS: dict[str, Callable[[Route], None]] = {
    "an error": lambda route: route.fulfill(status=503),
    "no answer": lambda route: route.abort(),
}


@pytest.mark.slow
@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
def test_failed_request_for_a_part_is_repeated(
    stage: Stage, site: Site, context: BrowserContext, refuse: Callable[[Route], None]
) -> None:
    with stage.held() as flow:
        page = context.new_page()
        page.goto(site.login_url)
        page.goto(f"{site.address}flows/{flow}/timeline")
        marked(page)
        page.evaluate(_ANSWERED)
        attempts = page.locator(".wbe-chart .attempt")
        expect(page.locator("#live")).to_have_text("Live")
        expect(attempts).to_have_count(2)
        page.evaluate(_BEHIND)
        page.route("**/*part=body*", refuse)
        flow.let_go()
        expect(page.locator("body[data-answered]")).to_have_count(1)
        page.unroute("**/*part=body*")
        expect(attempts).to_have_count(3)
        assert is_the_same(page)


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_error_response_does_not_replace_the_page(
    stage: Stage, site: Site, context: BrowserContext, status: int
) -> None:
    with stage.held() as flow:
        page = context.new_page()
        page.goto(site.login_url)
        page.goto(f"{site.address}flows/{flow}")
        marked(page)
        expect(page.locator("#live")).to_have_text("Live")
        page.route("**/*part=*", lambda route: route.fulfill(status=status, body="<h1>away</h1>"))
        flow.let_go()
        stage.finish()
        expect(page.locator("#live")).to_have_text("Outdated")
        expect(page.locator("h1")).to_have_text("night audit")
        page.unroute("**/*part=*")
        expect(page.locator("#head .badge.state-SUCCESS").first).to_be_visible(timeout=10_000)
        expect(page.locator("#live")).to_have_text("Live")
        assert is_the_same(page)
        lost = context.new_page()
        lost.goto(f"{site.address}nothing/here")
        accessible(lost)
        lost.close()
        # The session has expired in an open tab.
        context.clear_cookies()
        # The page may be leaving by itself, because an event of the flow updated it.
        with contextlib.suppress(Error):
            page.evaluate("htmx.trigger(document.body, 'refresh-head')")
        expect(page.locator("h1")).to_have_text("Sign in")
        expect(page.locator(".tabs")).to_have_count(0)


@pytest.mark.slow
def test_failure_page_opens_from_the_list(stage: Stage, site: Site, opened: Opener) -> None:
    uuid = stage.begin("morning")
    stage.finish()
    page = opened(site)
    page.get_by_role("link", name="morning order").first.click()
    page.get_by_role("link", name="Show the failure").click()
    traceback = page.get_by_label("Traceback").first
    expect(traceback).to_contain_text("_ask_the_bank")
    expect(traceback).to_contain_text("CardRefused: the bank refused the card ending in 0002")
    expect(page.get_by_text("Reverted tasks")).to_be_visible()
    accessible(page)
    assert page.url == f"{site.address}flows/{uuid}/failures"
    page.get_by_role("link", name="charge the card").first.click()
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()
    assert page.locator("tbody tr").count() >= 2
    accessible(page)
