"""Cost of pages of a flow with many atoms."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.conftest import client
from tests.support.workers import until
from tests.views import records
from wbengine.dashboard import _cache, _flow_cache
from wbengine.persistence import backends, base, models
from wbengine.views import redaction

ATOMS = 2_000
RAN = 1_200
PARTS = 20


class Wide:
    """A stored flow of `ATOMS` atoms in `PARTS` nested flows."""

    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend
        detail, outline = records.wide(ATOMS)
        book = models.LogBook("books")
        book.add(detail)
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()
            connection.save_logbook(book)
            connection.save_outline(detail.uuid, outline)
        self.uuid = detail.uuid

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Complete one more atom for the duration of the context."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            detail = connection.get_flow_details(self.uuid)
            atom = next(each for each in detail if each.state == "PENDING")
            atom.state = "SUCCESS"
            connection.save_changes(detail, [atom])
            yield
            atom.state = "PENDING"
            connection.save_changes(detail, [atom])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wide]:
    place = tmp_path_factory.mktemp("wide") / "flows.db"
    with contextlib.closing(backends.fetch(f"sqlite:///{place}")) as backend:
        yield Wide(backend)


@pytest.fixture(autouse=True)
def it_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_flow_cache, "SUMMARY_ATOMS", 1_000)


@pytest.fixture
def browser(wide: Wide) -> Iterator[TestClient]:
    with client(wide, token=None) as test_client:  # type: ignore[arg-type]
        yield test_client
        views_are_made()


def views_are_made() -> None:
    """Wait until no view is being built, so that counts are complete."""
    for thread in threading.enumerate():
        if thread.name == "wbengine-view":
            thread.join()


class Counted:
    """Numbers of atom records read and of texts masked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.masked = 0
        begin, text = models.AtomDetail.__init__, redaction.Redactor.text

        def reading_one(record: Any, *told: Any, **more: Any) -> None:
            self.read += 1
            begin(record, *told, **more)

        def masking_one(redactor: Any, told: str) -> str:
            self.masked += 1
            return text(redactor, told)

        monkeypatch.setattr(models.AtomDetail, "__init__", reading_one)
        monkeypatch.setattr(redaction.Redactor, "text", masking_one)

    def since(self) -> tuple[int, int]:
        counts = self.read, self.masked
        self.read = self.masked = 0
        return counts


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_first_page_reads_no_atoms(
    wide: Wide, browser: TestClient, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next test counts what builds read.
    monkeypatch.setattr(_cache.ViewCache, "start_build", lambda made: None)
    answer = browser.get(f"/flows/{wide.uuid}")
    read, masked = counted.since()
    assert answer.headers["refresh"] == "2"
    assert "Loading 2,000 tasks" in answer.text
    assert "1,200 SUCCESS" in answer.text
    assert "part-19" in answer.text and answer.text.count(">100</td>") == PARTS
    assert read == 0 and masked < 100
    browser.get(f"/flows/{wide.uuid}/graph")
    read, masked = counted.since()
    assert read == 0 and masked < 100
    assert browser.get(f"/flows/{wide.uuid}?part=body").status_code == 503


@pytest.mark.slow
def test_following_pages_read_the_atoms_once(
    wide: Wide, browser: TestClient, counted: Counted
) -> None:
    assert "refresh" in browser.get(f"/flows/{wide.uuid}").headers
    assert browser.get(f"/api/v1/flows/{wide.uuid}?atoms=0").json()["total"] == ATOMS
    views_are_made()
    assert counted.since()[0] == ATOMS
    answer = browser.get(f"/flows/{wide.uuid}")
    assert "refresh" not in answer.headers
    assert answer.text.count("?under=") == PARTS - 11  # eleven parts fit on the page
    for tab in ("", "/graph", "/timeline", "/failures", "/events"):
        counted.since()
        assert browser.get(f"/flows/{wide.uuid}{tab}").status_code == 200
        read, masked = counted.since()
        assert read == 0 and masked < 1_500, tab


def test_page_does_not_wait_for_a_costly_view(
    wide: Wide, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(_cache, "REBUILD_FACTOR", 0.0)
    assert browser.get(f"/api/v1/flows/{wide.uuid}?atoms=0").json()["counts"]["SUCCESS"] == RAN
    with contextlib.ExitStack() as end:
        with _cache._COSTLY_BUILD_LOCK:  # no view can be built
            end.enter_context(wide.one_more())
            assert "1,200 SUCCESS" in browser.get(f"/flows/{wide.uuid}").text
        until(lambda: "1,201 SUCCESS" in browser.get(f"/flows/{wide.uuid}").text)


Enter = Callable[[str], None]


@pytest.fixture
def enter(wide: Wide) -> Iterator[Enter]:
    """Yield a function that sets the state of the flow; restore the flow afterwards."""
    with contextlib.closing(wide.backend.get_connection()) as connection:
        detail = connection.get_flow_details(wide.uuid)
        was = detail.state, detail.history

        def enter(state: str) -> None:
            detail.enter(state, records.T)
            connection.save_changes(detail, [])

        yield enter
        detail.state, detail.history = was
        connection.save_changes(detail, [])


def test_outdated_answer_contains_a_refresh_time(
    wide: Wide, browser: TestClient, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part() -> tuple[bool, int | None]:
        """Return whether the page shows the end, and the seconds until its refresh."""
        answer = browser.get(f"/flows/{wide.uuid}?part=head")
        again = answer.headers.get("refresh")
        return "FAILURE" in answer.text, None if again is None else int(again)

    def is_read_again_without_scripts() -> bool:
        page = browser.get(f"/flows/{wide.uuid}")
        assert "refresh" not in page.headers, "scripts would begin anew"
        return '<noscript><meta http-equiv="refresh"' in page.text

    monkeypatch.setattr(_cache, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(_cache, "REBUILD_FACTOR", 0.0)
    assert part() == (False, None)
    with _cache._COSTLY_BUILD_LOCK:  # no view can be built
        assert part() == (False, None), "nothing is new"
        enter("FAILURE")
        reply, again = part()
        assert not reply and again is not None and again >= 1
    views_are_made()
    monkeypatch.setattr(_cache, "REBUILD_FACTOR", 1e6)
    assert part() == (True, None)
    assert not is_read_again_without_scripts()
    enter("RUNNING")
    reply, again = part()
    assert reply and again is not None and again > 60, "it is not made before"
    assert is_read_again_without_scripts()


def test_change_during_a_build_of_the_view_is_not_lost(
    wide: Wide, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, go_on = threading.Event(), threading.Event()

    def offered() -> None:
        making.set()
        assert go_on.wait(60)

    def latest() -> _cache.Latest:
        view = store.latest(wide.uuid)
        assert isinstance(view, _cache.Latest)
        return view

    monkeypatch.setattr(_cache, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(_cache, "REBUILD_FACTOR", 0.0)
    go_on.set()
    store = _flow_cache.Store(wide.backend, redaction.Redactor(), offered)
    with contextlib.closing(store), contextlib.ExitStack() as end:
        end.callback(go_on.set)
        store.flow(wide.uuid)
        go_on.clear()
        making.clear()
        assert latest().refresh_seconds is None, "nothing is new, but the time"
        assert making.wait(60)
        enter("FAILURE")
        assert latest().refresh_seconds is not None
        go_on.set()
        views_are_made()
        monkeypatch.setattr(_cache, "REBUILD_FACTOR", 1e6)
        view = latest()
        assert view.view.state == "RUNNING" and view.refresh_seconds is not None
        assert store.flow(wide.uuid).state == "FAILURE"
        view = latest()
        assert view.view.state == "FAILURE" and view.refresh_seconds is None


def test_unchanged_flow_is_not_read_again(
    wide: Wide, browser: TestClient, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(_cache, "REBUILD_FACTOR", 1e6)
    path = f"/api/v1/flows/{wide.uuid}?atoms=0"
    first = browser.get(path).json()
    counted.since()
    assert browser.get(path).json() == first
    assert counted.since()[1] < 10
    with wide.one_more():
        assert len(browser.get(f"/api/v1/flows/{wide.uuid}/events").json()["events"]) == 500
        assert browser.get(path).json()["counts"]["SUCCESS"] == RAN + 1


def test_events_are_listed_in_pages(wide: Wide, browser: TestClient, counted: Counted) -> None:
    path, events, after = f"/api/v1/flows/{wide.uuid}/events", [], ""
    while True:
        data = browser.get(path, params={"limit": 1000, "after": after}).json()
        events += data["events"]
        after = data["after"]
        if after is None:
            break
        assert counted.since()[1] <= 3 * 1000
    assert len(events) == 2 * RAN + 1
    times = [event["at"] for event in events]
    assert times == sorted(times)
    assert len({(event["uuid"], event["state"]) for event in events}) == len(events)


def test_resumed_stream_reads_no_atoms_again(wide: Wide, counted: Counted) -> None:
    store = _flow_cache.Store(wide.backend, redaction.Redactor())
    cursor = store.flow(wide.uuid).cursor
    counted.since()
    with contextlib.closing(store.watch(wide.uuid, cursor)) as watch:
        assert [event for event in watch.poll() if event.kind == "atom"] == []
    read, masked = counted.since()
    assert read == 0 and masked < 10
    store.close()
