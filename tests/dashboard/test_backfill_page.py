"""The page that submits flows for past times of a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.conftest import site
from tests.dashboard.forms import send
from wbengine.engines import _allowed
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends
from wbengine.schedules import Schedule, Schedules

GREETING = "tests.support.conducted:greeting"
NAME = "hourly <report>"
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Schedules]:
    _allowed.set_for_process(["tests.support.conducted"])
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        schedules = Schedules(backend)
        schedules.declare(Schedule(name=NAME, factory=GREETING, every=3600, inputs={"name": "Ada"}))
        yield schedules
    _allowed.set_for_process(None)


def page(browser: TestClient, **query: str) -> Any:
    return browser.get("/schedules/backfill", params={"schedule": NAME, **query})


def confirmation(text: str) -> dict[str, str]:
    """Return the fields of the form that submits the displayed times."""
    fields = dict(_HIDDEN.findall(text[text.index('id="confirm"') :]))
    return {**fields, "schedule": NAME}


def fired(schedules: Schedules) -> list[str]:
    with schedules.backend.get_connection() as connection:
        return sorted(str(row.tags["scheduled"]) for row in connection.list_flows().flows)


def test_times_are_shown_before_their_flows_are_submitted(kept: Schedules, audit: Any) -> None:
    with site(kept, "olga") as browser:
        listed = browser.get("/schedules").text
        assert 'href="/schedules/backfill?schedule=hourly+%3Creport%3E"' in listed
        form = page(browser).text
        assert "hourly &lt;report&gt;" in form and 'id="confirm"' not in form
        shown = page(browser, from_time="2026-01-01T00:30", to_time="2026-01-01T03:00").text
        assert "3 times without a flow" in shown and "2026-01-01T01:00:00.000Z" in shown
        assert fired(kept) == [], "the page only reads"
        answer = send(browser, "/schedules/backfill", confirmation(shown))
        assert answer.status_code == 303, answer.text
        assert "The flows are submitted." in browser.get(answer.headers["location"]).text
        assert fired(kept) == [f"2026-01-01T0{hour}:00:00Z" for hour in (1, 2, 3)]
        again = page(browser, from_time="2026-01-01T00:30", to_time="2026-01-01T03:00").text
        assert "No missing flows" in again
    board = impl_sql.SQLJobBoard("b", persistence=kept.backend)
    board.connect()
    assert {job.priority.value for job in board.iterjobs()} == {"VERY_LOW"}
    (line,) = audit()
    assert line.startswith("backfill schedule 'hourly <report>'") and "olga, operator" in line


def test_longer_list_is_continued_on_the_next_page(kept: Schedules) -> None:
    with site(kept, "olga") as browser:
        query = {"from_time": "2026-01-01", "to_time": "2026-01-01T05:00", "max_flows": "2"}
        shown = page(browser, **query, priority="LOW").text
        assert "2 times without a flow" in shown and "from_time=2026-01-01T02%3A00" in shown
        assert send(browser, "/schedules/backfill", confirmation(shown)).status_code == 303
    assert fired(kept) == ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]
    board = impl_sql.SQLJobBoard("b", persistence=kept.backend)
    board.connect()
    assert {job.priority.value for job in board.iterjobs()} == {"LOW"}


def test_times_that_changed_after_the_page_are_not_submitted(kept: Schedules) -> None:
    query = {"from_time": "2026-01-01", "to_time": "2026-01-01T01:00"}
    with site(kept, "olga") as browser:
        shown = page(browser, **query).text
        kept.declare(Schedule(name=NAME, factory=GREETING, every=1800, inputs={"name": "Ada"}))
        answer = send(browser, "/schedules/backfill", confirmation(shown))
        assert answer.status_code == 409 and "have changed" in answer.text
        assert fired(kept) == []
        fields = {**confirmation(page(browser, **query).text), "selection": ""}
        assert send(browser, "/schedules/backfill", fields).status_code == 409


def test_viewer_and_form_without_token_are_refused(kept: Schedules) -> None:
    query = {"from_time": "2026-01-01", "to_time": "2026-01-01"}
    with site(kept, "victor") as viewer, site(kept, "olga") as operator:
        fields = confirmation(page(operator, **query).text)
        assert page(viewer, **query).status_code == 403
        assert "Backfill" not in viewer.get("/schedules").text
        assert send(viewer, "/schedules/backfill", fields).status_code == 403
        del fields["form_token"]
        assert send(operator, "/schedules/backfill", fields).status_code == 403
    assert fired(kept) == []


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"from_time": "soon"}, 400, "from_time must be a time such as 2026-11-21T08:00"),
        ({"from_time": "1d", "to_time": "x"}, 400, "to_time must be a time such as"),
        ({"from_time": "1d", "max_flows": "1001"}, 400, "max_flows must be at most 1,000"),
        ({"from_time": "1d", "max_flows": "x"}, 400, "max_flows must be a number"),
        ({"from_time": "1d", "schedule": "daily"}, 404, "Unknown schedule"),
    ],
    ids=str,
)
def test_invalid_field_is_named(
    kept: Schedules, query: dict[str, str], status: int, text: str
) -> None:
    with site(kept, "olga") as browser:
        answer = page(browser, **query)
    assert answer.status_code == status and text.lower() in answer.text.lower(), answer.text
