"""The page of schedules: contents, permissions and buttons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client, site
from tests.dashboard.forms import send, token_in
from wbengine.persistence import backends
from wbengine.schedules import Schedule, Schedules

GREETING = "tests.support.conducted:greeting"
#: A script that a name can contain.
SCRIPT = story.SCRIPT.replace("/", "")
NAME = f"daily {SCRIPT}"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Schedules]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        schedules = Schedules(backend)
        schedules.declare(
            Schedule(name=NAME, factory=GREETING, cron="30 2 * * *", inputs={"key": story.CANARY})
        )
        yield schedules


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
