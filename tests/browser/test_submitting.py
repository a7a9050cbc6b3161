"""The form that starts a flow, in a browser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, accessible
from tests.dashboard.site import running
from tests.support import typed_orders
from wbengine.dashboard import Site
from wbengine.engines import _allowed
from wbengine.persistence import backends, base

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
