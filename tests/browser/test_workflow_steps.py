"""Steps of workflows and published values on pages in a real browser."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener, accessible, is_the_same, marked
from tests.dashboard.site import running
from tests.support import shown_workflows
from tests.support.engine_threads import Gate, Running
from wbengine import engines, operations, states, task
from wbengine.dashboard import Site
from wbengine.persistence import backends, base

LOG = logging.getLogger("tests.browser_steps")
LOG.setLevel(logging.INFO)
HELD: list[Gate] = []


@task.task
def ask() -> None:
    LOG.info("asking the bank")
    HELD.pop()()
    LOG.info("the bank agrees")


@task.workflow(name="hold")
def hold(steps: Any) -> None:
    steps.run(ask)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[base.Backend]:
    folder: Path = tmp_path_factory.mktemp("workflows")
    with backends.backend(f"sqlite:///{folder}/flows.db") as backend:
        yield backend


@pytest.fixture(scope="module")
def shown(backend: base.Backend) -> Iterator[Site]:
    with running(backend) as site:
        yield site


def texts(page: Page) -> list[str]:
    """Return the names and states of the rows for steps."""
    rows = page.locator("tr.step")
    return [" ".join(text.split()) for text in rows.all_inner_texts()]


def test_running_workflow_is_updated_live(
    backend: base.Backend, shown: Site, opened: Opener
) -> None:
    engine = engines.load(shown_workflows.checkout, backend=backend)
    uuid = engine.storage.flow_uuid
    engine.compile()
    engine.prepare()
    page = opened(shown, f"flows/{uuid}")
    marked(page)
    expect(page.locator("#live")).to_have_text("Live")
    with Running(engine):
        step = page.locator("tr.step", has_text="wait-for-approved")
        expect(step.locator(".badge")).to_have_text(re.compile("WAITING"))
        expect(step).to_contain_text(f"Waiting for signal 'approved {shown_workflows.HOSTILE}'")
        header, poll, sleep, book, ship, *_ = texts(page)
        assert header == "20 x poll, sleep-0; the latest:"
        assert poll.startswith("38 poll") and sleep.startswith("39 sleep-0")
        assert book.startswith("40 book ↶ REVERTED")
        assert re.match("41 ship ConnectionError: no answer .* ↶ REVERTED failed before 3", ship)
        published = page.locator(".published")
        expect(published).to_contain_text("waits")
        expect(published).to_contain_text('{"password": "***"}')
        assert page.locator("img").count() == 0
        accessible(page)
        operations.signal(backend, uuid, f"approved {shown_workflows.HOSTILE}", True)
        expect(step.locator(".badge")).to_have_text(re.compile("SUCCESS"))
        expect(published).to_contain_text("done")
    expect(page.locator("#head h1 + .badge")).to_have_text(re.compile("SUCCESS"))
    assert is_the_same(page)


def test_page_of_a_workflow_shows_its_steps(
    backend: base.Backend, shown: Site, opened: Opener
) -> None:
    engine = engines.load(shown_workflows.undone, backend=backend)
    with contextlib.suppress(ConnectionError):
        engine.run()
    page = opened(shown, f"flows/{engine.storage.flow_uuid}/events")
    page.get_by_role("link", name="undone/1.1-ship").first.click()
    expect(page.get_by_role("heading", name="ship", exact=True)).to_be_visible()
    expect(page.locator(".failure")).to_contain_text("ConnectionError: no answer")
    accessible(page)
    page.locator(".crumbs").get_by_role("link", name="undone").last.click()
    expect(page.get_by_role("heading", name="Steps")).to_be_visible()
    expect(page.locator("tr.step .badge")).to_have_text([re.compile("REVERTED")] * 2)
    expect(page.get_by_text("2 steps: 2 REVERTED")).to_be_visible()
    accessible(page)


def test_log_lines_appear_while_a_step_runs(
    backend: base.Backend, shown: Site, opened: Opener
) -> None:
    gate = Gate()
    HELD.append(gate)
    engine = engines.load(hold, backend=backend, engine="parallel")
    with Running(engine):
        assert gate.inside.wait(60)
        try:
            page = opened(shown, f"flows/{engine.storage.flow_uuid}/logs")
            marked(page)
            expect(page.locator(".log")).to_contain_text("asking the bank")
            LOG.warning("of another thread")  # not a line of the step
            accessible(page)
        finally:
            gate.let.set()
        expect(page.locator(".log li").first).to_contain_text("the bank agrees")
        assert page.locator(".log li").count() == 2
    assert is_the_same(page)


def test_parked_workflow_is_waiting_for_its_signal(
    backend: base.Backend, shown: Site, opened: Opener
) -> None:
    engine = engines.load(shown_workflows.checkout, backend=backend)
    engine.park_after = 0.0
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    page = opened(shown, f"flows/{engine.storage.flow_uuid}")
    expect(page.locator("#head h1 + .badge")).to_have_text(re.compile("WAITING"))
    step = page.locator("tr.step", has_text="wait-for-approved")
    expect(step.locator(".badge")).to_have_text(re.compile("WAITING"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_steps_fit_the_width_of_the_page(
    backend: base.Backend, shown: Site, opened: Opener, width: int
) -> None:
    engine = engines.load(shown_workflows.various, backend=backend)
    engine.run()
    page = opened(shown, f"flows/{engine.storage.flow_uuid}")
    page.set_viewport_size({"width": width, "height": 844})
    omitted = page.locator("tr.step", has_text=re.compile(r"\.\.\. \d+ (more|earlier) step"))
    expect(omitted.first).to_be_visible()
    assert page.locator("tr.step").count() <= 200
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
