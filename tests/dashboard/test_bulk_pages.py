"""Pages of operations on many flows: confirmation, progress, list, permissions and audit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import site
from tests.dashboard.forms import send, token_in
from tests.support.failed_flows import store_flows
from wbengine import states
from wbengine.conductors import _bulks
from wbengine.operations import _bulk
from wbengine.persistence import backends
from wbengine.persistence._bulk_records import COMPLETE, Bulk, BulkFlow

WHO = "olga, operator, 192.0.2.5"
PARIS = "find=shop%3Dparis&state=FAILURE"


class Store:
    """A store on disk."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def bulks(self) -> list[Bulk]:
        with contextlib.closing(self.backend.get_connection()) as connection:
            bulks: list[Bulk] = connection.bulks.latest()
        return bulks

    def carry_out(self) -> None:
        service = _bulks.BulkService(self.backend, "serve")
        while self.bulks()[0].state != COMPLETE:
            service.run_due()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield Store(backend)


def test_operator_retries_all_flows_of_the_filter(kept: Store, audit: Any) -> None:
    paris = store_flows(kept.backend, 3, tags={"shop": "paris"})
    others = store_flows(kept.backend, 2)
    with site(kept, "olga") as browser:
        page = browser.get(f"/?{PARIS}").text
        assert "Apply to all matching flows" in page and '<option value="retry">' in page
        assert '<option value="delete">' not in page
        page = browser.get(f"/bulks/new?operation=retry&{PARIS}").text
        assert "Retry 3 flows" in page and "order 2" in page
        fields = {"form_token": token_in(page), "reason": " release 43 ", "rate": "50"}
        answer = send(browser, f"/bulks?operation=retry&{PARIS}", fields)
        assert answer.status_code == 303
        (bulk,) = kept.bulks()
        assert (bulk.total, bulk.reason, bulk.rate) == (3, "release 43", 50.0)
        assert bulk.by == f"dashboard ({WHO})"
        page = browser.get(answer.headers["location"]).text
        assert "The operation is stored." in page and "0 of 3 flows done" in page
        kept.carry_out()
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert "3 of 3 flows done, 0 skipped" in page and "<button" not in page
        listed = browser.get("/bulks").text
        assert bulk.uuid[:8] in listed and "3 of 3" in listed
    with contextlib.closing(kept.backend.get_connection()) as connection:
        assert set(connection.commands([*paris, *others])) == set(paris)
    assert audit() == [f"flow retry of 3 flows, reason 'release 43', from {WHO}"]


def test_only_confirmed_flows_are_deleted(kept: Store) -> None:
    store_flows(kept.backend, 2)
    with site(kept, "ann") as browser:
        path = "operation=delete&state=FAILURE"
        page = browser.get(f"/bulks/new?{path}").text
        fields = {"form_token": token_in(page), "selection": value_of(page, "selection")}
        store_flows(kept.backend, 1)
        answer = send(browser, f"/bulks?{path}", fields)
        assert answer.status_code == 409 and "it has 3 flows now" in answer.text
        assert kept.bulks() == []
        page = browser.get(f"/bulks/new?{path}").text
        fields["selection"] = value_of(page, "selection")
        assert send(browser, f"/bulks?{path}", fields).status_code == 303
        assert [bulk.total for bulk in kept.bulks()] == [3]


def value_of(page: str, name: str) -> str:
    """Return the value of a hidden field."""
    match = re.search(f'name="{name}" value="([^"]+)"', page)
    assert match is not None
    return match[1]


def test_signal_has_name_and_value(kept: Store) -> None:
    uuids = store_flows(kept.backend, 2, state=None)
    with site(kept, "olga") as browser:
        path = "operation=signal&state=PENDING"
        page = browser.get(f"/bulks/new?{path}").text
        fields = {"form_token": token_in(page), "signal": "paid", "value": '{"by": "ann"}'}
        wrong = send(browser, f"/bulks?{path}", {**fields, "value": "{"})
        assert wrong.status_code == 400 and "value must be JSON" in wrong.text
        missing = send(browser, f"/bulks?{path}", {**fields, "signal": ""})
        assert missing.status_code == 400 and "requires parameter" in missing.text
        assert send(browser, f"/bulks?{path}", fields).status_code == 303
    kept.carry_out()
    with contextlib.closing(kept.backend.get_connection()) as connection:
        (received,) = connection.signals(uuids)[uuids[0]]
    assert received.name == "paid" and '"ann"' in received.text


def test_operation_is_cancelled_and_resumed_from_its_page(kept: Store, audit: Any) -> None:
    uuids = store_flows(kept.backend, 2)
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    bulk = _bulk.start(kept.backend, "flow retry", flows, {}, reason=story.SCRIPT)
    with site(kept, "olga") as browser:
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert story.SCRIPT not in page and "Cancel</button>" in page
        fields = {"form_token": token_in(page)}
        answer = send(browser, f"/bulks/{bulk.uuid}/cancel", fields)
        page = browser.get(answer.headers["location"]).text
        assert "The operation is cancelled." in page and "Resume</button>" in page
        answer = send(browser, f"/bulks/{bulk.uuid}/resume", fields)
        assert "The operation continues." in browser.get(answer.headers["location"]).text
        assert send(browser, f"/bulks/{bulk.uuid}/delete", fields).status_code == 404
    assert audit()[0] == f"cancel operation {bulk.uuid} (flow retry), from {WHO}"


def test_skipped_flows_are_reported_with_reasons(kept: Store) -> None:
    uuids = store_flows(kept.backend, 2, is_submitted=False)
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    bulk = _bulk.start(kept.backend, "flow retry", flows, {})
    kept.carry_out()
    with site(kept, "victor") as viewer:
        page = viewer.get(f"/bulks/{bulk.uuid}?part=bulk").text
    assert "0 of 2 flows done, 2 skipped" in page and "Flow ID was not submitted" in page


def test_visitor_without_the_role_changes_nothing(kept: Store) -> None:
    store_flows(kept.backend, 1)
    with site(kept, "victor") as viewer:
        assert "Apply to all" not in viewer.get("/").text
        assert viewer.get("/bulks/new?operation=retry").status_code == 403
        assert send(viewer, "/bulks?operation=retry").status_code == 403
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/bulks/new?operation=retry").text)}
        assert browser.get("/bulks/new?operation=delete").status_code == 403
        assert send(browser, "/bulks?operation=delete", fields).status_code == 403
        assert send(browser, "/bulks?operation=retry").status_code == 403  # without the token
        assert browser.get("/bulks/new?operation=submit").status_code == 404
        assert send(browser, "/bulks?operation=retry&state=X", fields).status_code == 400
        assert send(browser, "/bulks?operation=retry&find=no", fields).status_code == 409
    assert kept.bulks() == []
