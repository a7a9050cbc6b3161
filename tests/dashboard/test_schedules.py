"""Pages of schedules: contents, permissions, buttons, and flows for past times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, allowing, client, refused, site
from tests.dashboard.forms import send, token_in
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base
from wbengine.schedules import Schedule, Schedules

GREETING = "tests.support.conducted:greeting"
#: A script that a name can contain.
SCRIPT = story.SCRIPT.replace("/", "")
NAME = f"daily {SCRIPT}"


@pytest.fixture
def kept(store: base.Backend) -> Schedules:
    inputs = {"key": story.CANARY}
    Schedules(store).declare(
        Schedule(name=NAME, factory=GREETING, cron="30 2 * * *", inputs=inputs)
    )
    return Schedules(store)


def test_schedules_are_listed_in_pages(kept: Schedules) -> None:
    for number in range(7):
        kept.declare(Schedule(name=f"n{number}", factory=GREETING, every=60))
    with site(kept, "victor") as viewer:
        names, after, pages = list[str](), "", 0
        while after is not None:
            data = viewer.get("/api/v1/schedules", params={"limit": 4, "after": after}).json()
            names += [one["name"] for one in data["schedules"]]
            after, pages = data["after"], pages + 1
        assert names == [entry.name for entry in kept.all()] and pages == 2
        assert viewer.get("/api/v1/schedules").json()["after"] is None
        first = viewer.get("/schedules?limit=4").text
        assert "after=n2" in first and ">n2<" in first and ">n3<" not in first
        last = viewer.get("/schedules?limit=4&after=n2").text
        assert ">n3<" in last and ">n2<" not in last and "after=n6" not in last
        for wrong in ("0", "1001", "x"):
            assert viewer.get(f"/api/v1/schedules?limit={wrong}").status_code == 400


def test_page_shows_schedules(kept: Schedules) -> None:
    uuid = kept.run(NAME)
    entry = kept.get(NAME)
    kept.note_trouble(entry, f"ValueError: password={story.CANARY}")
    with site(kept, "victor") as viewer:
        page = viewer.get("/schedules").text
        data = viewer.get("/api/v1/schedules").json()
        part = viewer.get("/schedules?part=rows").text
    assert "30 2 * * * UTC" in page and GREETING in page and "and once as soon as possible" in page
    assert "T02:30:00.000Z" in page and "Run now" not in page and 'aria-current="page"' in page
    assert SCRIPT not in page and story.CANARY not in page + str(data)
    assert "password=" in page and "<html" not in part and 'id="schedules"' in part
    [listed] = data["schedules"]
    assert data["schema"] == "wbengine/schedules/1"
    assert (listed["name"], listed["inputs"], listed["wanted"]) == (NAME, ["key"], uuid)


def test_operator_pauses_resumes_and_runs(kept: Schedules, audit: Any) -> None:
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/schedules").text), "schedule": NAME}
        answer = send(browser, "/schedules/pause", fields)
        assert answer.status_code == 303
        assert kept.get(NAME).paused
        page = browser.get(answer.headers["location"]).text
        assert "The schedule is paused." in page and "Resume</button>" in page
        assert send(browser, "/schedules/resume", fields).status_code == 303
        assert not kept.get(NAME).paused
        assert send(browser, "/schedules/run", fields).status_code == 303
        assert kept.get(NAME).wanted is not None
        assert send(browser, "/schedules/remove", fields).status_code == 404
        gone = send(browser, "/schedules/run", {**fields, "schedule": "x"})
        assert gone.status_code == 404 and "Unknown schedule" in gone.text
    lines = audit()
    assert lines[0].startswith('pause schedule "daily ') and "from olga, operator" in lines[0]


def test_viewer_and_form_without_token_are_refused(kept: Schedules) -> None:
    with site(kept, "victor") as viewer, site(kept, "olga") as operator:
        fields = {"form_token": token_in(operator.get("/schedules").text), "schedule": NAME}
        assert send(viewer, "/schedules/pause", fields).status_code == 403
        assert send(operator, "/schedules/pause", {"schedule": NAME}).status_code == 403
    assert not kept.get(NAME).paused


def test_empty_page_shows_how_to_add_a_schedule(kept: Schedules) -> None:
    """A store that is not a database shows the same page."""
    kept.remove(NAME)
    for each in (kept, story.told()):
        with client(each) as guest:
            page = admitted(guest).get("/schedules").text
            assert "No schedules" in page and "wbengine schedule add" in page
            assert guest.get("/api/v1/schedules").json()["schedules"] == []


HOURLY = "hourly <report>"
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


@pytest.fixture
def hourly(store: base.Backend) -> Iterator[Schedules]:
    schedules = Schedules(store)
    schedules.declare(Schedule(name=HOURLY, factory=GREETING, every=3600, inputs={"name": "Ada"}))
    with allowing("tests.support.conducted"):
        yield schedules


def page(browser: TestClient, **query: str) -> Any:
    return browser.get("/schedules/backfill", params={"schedule": HOURLY, **query})


def confirmation(text: str) -> dict[str, str]:
    """Return the fields of the form that submits the displayed times."""
    fields = dict(_HIDDEN.findall(text[text.index('id="confirm"') :]))
    return {**fields, "schedule": HOURLY}


def fired(schedules: Schedules) -> list[str]:
    with schedules.backend.get_connection() as connection:
        return sorted(str(row.tags["scheduled"]) for row in connection.list_flows().flows)


def test_times_are_shown_before_their_flows_are_submitted(hourly: Schedules, audit: Any) -> None:
    with site(hourly, "olga") as browser:
        listed = browser.get("/schedules").text
        assert 'href="/schedules/backfill?schedule=hourly+%3Creport%3E"' in listed
        form = page(browser).text
        assert "hourly &lt;report&gt;" in form and 'id="confirm"' not in form
        shown = page(browser, from_time="2026-01-01T00:30", to_time="2026-01-01T03:00").text
        assert "3 times without a flow" in shown and "2026-01-01T01:00:00.000Z" in shown
        assert fired(hourly) == [], "the page only reads"
        answer = send(browser, "/schedules/backfill", confirmation(shown))
        assert answer.status_code == 303, answer.text
        assert "The flows are submitted." in browser.get(answer.headers["location"]).text
        assert fired(hourly) == [f"2026-01-01T0{hour}:00:00Z" for hour in (1, 2, 3)]
        again = page(browser, from_time="2026-01-01T00:30", to_time="2026-01-01T03:00").text
        assert "No missing flows" in again
    board = impl_sql.SQLJobBoard("b", persistence=hourly.backend)
    board.connect()
    assert {job.priority.value for job in board.iterjobs()} == {"VERY_LOW"}
    (line,) = audit()
    assert line.startswith("backfill schedule 'hourly <report>'") and "olga, operator" in line


def test_longer_list_is_continued_on_the_next_page(hourly: Schedules) -> None:
    with site(hourly, "olga") as browser:
        query = {"from_time": "2026-01-01", "to_time": "2026-01-01T05:00", "max_flows": "2"}
        shown = page(browser, **query, priority="LOW").text
        assert "2 times without a flow" in shown and "from_time=2026-01-01T02%3A00" in shown
        assert send(browser, "/schedules/backfill", confirmation(shown)).status_code == 303
    assert fired(hourly) == ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]
    board = impl_sql.SQLJobBoard("b", persistence=hourly.backend)
    board.connect()
    assert {job.priority.value for job in board.iterjobs()} == {"LOW"}


def test_times_that_changed_after_the_page_are_not_submitted(hourly: Schedules) -> None:
    query = {"from_time": "2026-01-01", "to_time": "2026-01-01T01:00"}
    with site(hourly, "olga") as browser:
        shown = page(browser, **query).text
        hourly.declare(Schedule(name=HOURLY, factory=GREETING, every=1800, inputs={"name": "Ada"}))
        refused(send(browser, "/schedules/backfill", confirmation(shown)), 409, "have changed")
        assert fired(hourly) == []
        fields = {**confirmation(page(browser, **query).text), "selection": ""}
        assert send(browser, "/schedules/backfill", fields).status_code == 409


def test_backfill_by_viewer_or_without_form_token_is_refused(hourly: Schedules) -> None:
    query = {"from_time": "2026-01-01", "to_time": "2026-01-01"}
    with site(hourly, "victor") as viewer, site(hourly, "olga") as operator:
        fields = confirmation(page(operator, **query).text)
        assert page(viewer, **query).status_code == 403
        assert "Backfill" not in viewer.get("/schedules").text
        assert send(viewer, "/schedules/backfill", fields).status_code == 403
        del fields["form_token"]
        assert send(operator, "/schedules/backfill", fields).status_code == 403
    assert fired(hourly) == []


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
    hourly: Schedules, query: dict[str, str], status: int, text: str
) -> None:
    with site(hourly, "olga") as browser:
        answer = page(browser, **query)
    assert answer.status_code == status and text.lower() in answer.text.lower(), answer.text
