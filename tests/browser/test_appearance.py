"""Appearance and accessibility of pages: color schemes, phone, keyboard, without scripts."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import SIZE, Opener, accessible, shoot
from tests.browser.stage import TASKS, Stage
from tests.dashboard import story
from tests.dashboard.site import running
from wbengine.dashboard import Site
from wbengine.patterns import linear_flow
from wbengine.schedules import Schedule, Schedules
from wbengine.signals import Signal

#: Environment variable that updates the screenshots of the guide.
RECORD = "WBENGINE_RECORD_SCREENSHOTS"
KEPT = Path(__file__).resolve().parents[2] / "doc" / "source" / "_static"
LARGEST = 150_000


PAGES = {
    "flows": "",
    "tasks": "flows/{morning}",
    "graph": "flows/{weekend}/graph",
    "large": "flows/{month}/graph",
    "timeline": "flows/{evening}/timeline",
    "map": "flows/{parcels}/atoms/{weigh}",
    "events": "flows/{morning}/events",
    "failures": "flows/{morning}/failures",
    "workers": "workers",
    "queues": "queues",
}


@pytest.fixture(scope="module")
def told(stage: Stage) -> dict[str, str]:
    """Return the uuids of flows that succeeded or failed, by name, and of one atom."""
    with stage.held("evening") as evening:
        evening.let_go()
    morning, weekend, month = (stage.begin(each) for each in ("morning", "weekend", "month"))
    parcels = stage.begin("parcels", {"parcels": list(range(12))})
    stage.finish()
    with contextlib.closing(stage.backend.get_connection()) as connection:
        (weigh,) = (each for each in connection.get_atoms_for_flow(parcels) if each.name == "weigh")
    return {
        "evening": str(evening), "morning": morning, "weekend": weekend, "month": month,
        "parcels": parcels, "weigh": weigh.uuid,
    }  # fmt: skip


@pytest.fixture(scope="module")
def busy(acting: Site, stage: Stage, told: dict[str, str]) -> Iterator[Site]:
    """A dashboard with a running flow."""
    with stage.held():
        yield acting


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return KEPT if os.environ.get(RECORD) else tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits_the_window(
    busy: Site, told: dict[str, str], opened: Opener, folder: Path, name: str, scheme: str
) -> None:
    path = PAGES[name].format(**told)
    page = opened(busy, path, color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator("h1").first).to_be_visible()
    if page.locator("[data-stream]").count():
        expect(page.locator("#live")).to_have_text("Live")
    page.wait_for_load_state("load")
    picture = f"{name}-{scheme}"
    shoot(page, picture, folder)
    assert (folder / f"dashboard-{picture}.png").stat().st_size < LARGEST
    assert (KEPT / f"dashboard-{picture}.png").exists(), f"{RECORD}=1 makes it"
    overflow = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(overflow), "it is wider than the window"
    accessible(page)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forms_schedules_and_logs_are_accessible(
    acting: Site, stage: Stage, told: dict[str, str], opened: Opener, scheme: str
) -> None:
    """These pages have no screenshot in the guide."""
    schedule = Schedule(name="nightly", factory=f"{TASKS}:morning", cron="30 2 * * *")
    schedules = Schedules(stage.backend)
    schedules.add(schedule)
    approval = stage.begin("approval")
    page = opened(acting, color_scheme=scheme, reduced_motion="reduce")
    try:
        for path, shown in (
            ("schedules", page.get_by_role("button", name="Run now: nightly")),
            (
                "schedules/backfill?schedule=nightly&from_time=3d",
                page.get_by_role("button", name="Submit 3 flows"),
            ),
            ("queues/dead", page.get_by_text("No dead letters")),
            (f"flows/{approval}", page.get_by_role("button", name="Send")),
            (
                f"flows/{told['parcels']}/atoms/{told['weigh']}",
                page.get_by_text("on the scales"),
            ),
            ("?find=nobody", page.get_by_text("No matching flows")),
        ):
            page.goto(acting.address + path)
            expect(shown.first).to_be_visible()
            accessible(page)
    finally:
        schedules.remove("nightly")
        with contextlib.closing(stage.backend.get_connection()) as connection:
            connection.send_signal(approval, Signal.of("approved", True, time.time()))
        stage.finish(approval)


@pytest.mark.slow
def test_pages_fit_a_phone_screen(
    busy: Site, told: dict[str, str], opened: Opener, folder: Path
) -> None:
    page = opened(busy, has_touch=True, reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 800})
    for name, path in PAGES.items():
        page.goto(busy.address + path.format(**told))
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, path
        top = "document.querySelector('.top').scrollWidth"
        assert page.evaluate(top) <= 390, path
        # No part of a list is hidden.
        for table in page.locator(".wide:has(.stack)").all():
            assert table.evaluate("each => each.scrollWidth <= each.clientWidth"), path
        shoot(page, f"{name}-phone", folder)
        assert (KEPT / f"dashboard-{name}-phone.png").exists(), f"{RECORD}=1 makes it"
    page.set_viewport_size(SIZE)


@pytest.mark.slow
def test_long_names_do_not_displace_other_content(opened: Opener) -> None:
    flows = story.Kept()
    flow = linear_flow.Flow("N" * 255).add(story.Fine("L" * 255), story.Fine("w " * 127))
    flows.run("long", flow)
    failing_flow = linear_flow.Flow("failing").add(story.Leaky("F" * 205))
    failed = flows.run("failing", failing_flow, {"password": "p", "dsn": "D" * 255})
    tabs = ("", "/graph", "/timeline", "/events", "/failures")
    pages = [f"flows/{uuid}{tab}" for uuid in flows.uuids.values() for tab in tabs]
    (atom,) = (
        each
        for each in flows.see(lambda connection: connection.get_flow_details(failed))
        if each.name == "F" * 205
    )
    pages.append(f"flows/{failed}/atoms/{atom.uuid}")
    with running(flows.backend) as site:
        page = opened(site)
        for path in ["", *pages]:
            page.goto(site.address + path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= SIZE["width"], path
            for badge in page.locator("main .badge:visible").all():
                box = badge.bounding_box()
                assert box is not None and box["x"] + box["width"] < SIZE["width"], path
            tall = page.evaluate("document.documentElement.scrollHeight")
            assert tall < 2 * SIZE["height"], path
        page.close()  # before its server stops


@pytest.mark.slow
def test_pages_can_be_operated_by_keyboard(
    busy: Site, told: dict[str, str], opened: Opener
) -> None:
    page = opened(busy)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Start a flow")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Name, id or tag")).to_be_focused()
    page.keyboard.type("morning")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("find=morning"))
    expect(page.locator("tbody tr")).to_have_count(1)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "morning order":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="morning order")).to_be_visible()
    page.goto(f"{busy.address}flows/{told['morning']}/graph")
    page.locator("#canvas").focus()
    for _ in range(40):  # into the graph, past the flows that can be closed, to the first task
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        if re.match(r"[\w ]+, ", label):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()


def without_refresh(route: Route) -> None:
    """Remove the automatic reload, which would clear a form that is filled in slowly."""
    answer = route.fetch()
    text = answer.text()
    assert 'http-equiv="refresh"' in text
    route.fulfill(response=answer, body=text.replace('http-equiv="refresh"', ""))


@pytest.mark.slow
def test_pages_work_without_scripts(busy: Site, told: dict[str, str], opened: Opener) -> None:
    page = opened(busy, java_script_enabled=False)
    page.route(busy.address, without_refresh)
    page.goto(busy.address)
    page.get_by_label("Name, id or tag").fill("order")
    page.get_by_role("checkbox", name=re.compile("REVERTED")).check()
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("link", name="morning order").click()
    expect(page.locator("tr[data-uuid]")).to_have_count(10)
    for tab, shown in (
        ("Graph", ".wbe-graph .atom"),
        ("Timeline", ".wbe-chart .attempt"),
        ("Events", ".events li"),
        ("Failures 1", "pre"),
    ):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.locator(shown).first).to_be_visible()
    expect(page.locator("#live")).to_be_hidden()


@pytest.mark.slow
def test_page_without_scripts_reloads_itself(stage: Stage, busy: Site, opened: Opener) -> None:
    page = opened(busy, java_script_enabled=False)
    with stage.held() as flow:
        page.goto(f"{busy.address}flows/{flow}")
        state = page.locator("#head h1 + .badge")
        expect(state).to_have_text(re.compile("RUNNING"))
    expect(state).to_have_text(re.compile("SUCCESS"))


@pytest.mark.slow
def test_large_graph_can_be_searched_zoomed_and_dragged(opened: Opener) -> None:
    flows = story.Kept()
    regions = []
    for region in range(20):
        inner = linear_flow.Flow(f"region {region}")
        regions.append(inner.add(*(story.Fine(f"r{region} step {step}") for step in range(25))))
    uuid = flows.run("nightly", linear_flow.Flow("nightly").add(story.Fine("begin"), *regions))
    with running(flows.backend) as site:
        page = opened(site, f"flows/{uuid}/graph")
        expect(page.locator("g.atom")).to_have_count(21)
        page.get_by_role("link", name=re.compile("^Open region 7,")).click()
        expect(page.locator("g.atom")).to_have_count(45)

        page.get_by_label("Find a task").fill("r7 step 2")
        expect(page.locator("g.atom.match")).to_have_count(6)
        expect(page.locator("output")).to_have_text("1 of 6 found")
        expect(page.locator("g.atom.here")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("output")).to_have_text("2 of 6 found")

        map_, picture = page.locator(".minimap"), page.locator(".wbe-graph")
        expect(map_).to_be_visible()
        accessible(page)
        before = picture.bounding_box()
        page.get_by_role("button", name="Zoom in").click()
        larger = picture.bounding_box()
        assert before and larger and larger["width"] > 1.2 * before["width"]
        page.locator("#canvas").focus()
        page.keyboard.press("0")
        expect(map_).to_be_hidden()  # the whole graph is visible
        page.keyboard.press("1")
        expect(map_).to_be_visible()

        top = page.locator("#canvas").evaluate("each => each.scrollTop = 300")
        box = page.locator("#canvas").bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2, box["y"] + 120
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y + 100, steps=5)
        page.mouse.up()
        assert page.locator("#canvas").evaluate("each => each.scrollTop") == top - 100
        assert page.url.endswith("open=184#node-184"), "what it was dragged by was not opened"

        page.get_by_label("Find a task").fill("r19 step 24")
        expect(page.locator("output")).to_have_text(re.compile("Not in this graph"))
        page.keyboard.press("Enter")
        expect(page.locator("tr[data-uuid]")).to_have_count(1)
