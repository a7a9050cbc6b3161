"""Event streams: each source is polled once, and each listener receives each update once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.held import Running
from tests.dashboard.site import running, stream
from tests.dashboard.site import running as serving
from wbengine import exceptions
from wbengine.dashboard import _authentication, _feeds
from wbengine.dashboard import _site as servers
from wbengine.dashboard import _stream as streams
from wbengine.persistence import base
from wbengine.views import flow_status as flows
from wbengine.views import watcher


class Written(_feeds.Source[list[int]]):
    """A source of numbers; its cursor is the number of numbers read."""

    def __init__(self, numbers: list[int], seen: int = 0) -> None:
        self.numbers = numbers
        self.seen = seen
        self.looks = self.joins = self.closed = 0
        #: Called before and after each poll.
        self.around: Callable[[], None] = lambda: None

    @property
    def cursor(self) -> str | None:  # type: ignore[override]
        return str(self.seen)

    def poll(self) -> list[int] | None:
        self.looks += 1
        self.around()
        unread = self.numbers[self.seen :]
        self.seen += len(unread)
        self.around()
        return unread or None

    def join(self, cursor: str | None) -> tuple[list[int] | None, list[int]]:
        self.joins += 1
        news = self.poll()
        return news, self.numbers[int(cursor or 0) : self.seen]

    def close(self) -> None:
        self.closed += 1


def said(error: Exception) -> None:
    raise AssertionError from error


@contextlib.asynccontextmanager
async def kind() -> AsyncIterator[_feeds.Feeds[list[int]]]:
    """Yield feeds that poll without a pause."""
    closing = threading.Event()
    yield _feeds.Feeds(0.0, closing, said)
    closing.set()


async def heard(listener: _feeds.Listener[list[int]], last: int) -> list[int]:
    """Return the received numbers up to `last`."""
    numbers: list[int] = []
    async for turn in listener:
        numbers += turn.content
        if last in numbers:
            return numbers
    raise AssertionError("it has ended")


class Begun:
    """The sources that feeds have opened, all with the same numbers."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.sources: list[Written] = []

    def at(self, cursor: str | None) -> Callable[[], Written]:
        def begin() -> Written:
            self.sources.append(Written(self.numbers, int(cursor or 0)))
            return self.sources[-1]

        return begin


def test_new_listener_receives_every_update_once() -> None:
    numbers, begun = [1, 2], Begun([])
    begun.numbers = numbers

    async def story_() -> None:
        async with kind() as open_feeds:
            one = await open_feeds.join("numbers", "2", begun.at("2"))
            numbers.append(3)
            other = await open_feeds.join("numbers", None, begun.at(None))
            assert other.feed is one.feed and len(begun.sources) == 1
            numbers.append(99)
            assert await heard(other, 99) == [1, 2, 3, 99]
            assert await heard(one, 99) == [3, 99]
            open_feeds.leave(one)
            assert begun.sources[0].closed == 0
            open_feeds.leave(other)
            assert begun.sources[0].closed == 1

    asyncio.run(story_())


def test_listeners_with_the_same_cursor_share_one_poll_and_text() -> None:
    numbers, texts = [1, 2], list[bytes]()
    begun = Begun(numbers)

    def tell(turn: _feeds.Update[list[int]]) -> bytes:
        texts.append(repr(turn.content).encode())
        return texts[-1]

    async def first_text(listener: _feeds.Listener[list[int]]) -> bytes:
        async for turn in listener:
            text: bytes = await turn.text("alike", tell)
            return text
        raise AssertionError("it has ended")

    async def story_() -> None:
        # Only joins cause polls.
        open_feeds: _feeds.Feeds[list[int]] = _feeds.Feeds(1e6, threading.Event(), said)
        one = await open_feeds.join("numbers", "2", begun.at("2"))
        others = await asyncio.gather(
            *(open_feeds.join("numbers", None, begun.at(None)) for _ in range(100))
        )
        assert len({await first_text(other) for other in others}) == 1
        (source,) = begun.sources
        assert source.joins == 1 and len(texts) == 1
        for listener in (one, *others):
            open_feeds.leave(listener)

    asyncio.run(story_())


def test_listener_with_a_known_cursor_receives_updates_since_it() -> None:
    """Recent updates are replayed from memory; only older cursors cause a poll."""
    numbers = [1]
    begun = Begun(numbers)

    async def story_() -> None:
        async with kind() as open_feeds:
            one = await open_feeds.join("numbers", None, begun.at(None))
            assert await heard(one, 1) == [1]
            for number in range(2, 7):
                numbers.append(number)
                assert await heard(one, number) == [number]
            other = await open_feeds.join("numbers", None, begun.at(None))
            assert begun.sources[0].joins == 0
            assert await heard(other, 6) == [1, 2, 3, 4, 5, 6]
            for number in range(7, 40):
                numbers.append(number)
                assert await heard(one, number) == [number]
            last = await open_feeds.join("numbers", None, begun.at(None))
            assert begun.sources[0].joins == 1
            assert await heard(last, 39) == list(range(1, 40))

    asyncio.run(story_())


def test_listener_that_joins_as_the_last_one_leaves_is_served() -> None:
    """This happens when a page is reloaded."""
    numbers = [1]
    begun = Begun(numbers)

    async def story_() -> None:
        async with kind() as open_feeds:
            one = await open_feeds.join("numbers", None, begun.at(None))
            (first,), loop = begun.sources, asyncio.get_running_loop()
            gone = threading.Event()

            def leave() -> None:
                open_feeds.leave(one)
                gone.set()

            def last_leaves() -> None:
                if first.joins and not gone.is_set():  # during the poll of the join
                    loop.call_soon_threadsafe(leave)
                    assert gone.wait(10)

            first.around = last_leaves
            other = await open_feeds.join("numbers", "1", begun.at("1"))
            assert gone.is_set()
            numbers.append(2)
            assert await asyncio.wait_for(heard(other, 2), 10) == [2]
            assert sum(each.closed for each in begun.sources) == len(begun.sources) - 1

    asyncio.run(story_())


def test_cancelled_join_takes_no_updates_from_other_listeners() -> None:
    numbers = [1]
    begun = Begun(numbers)

    async def story_() -> None:
        # Only joins cause polls.
        open_feeds: _feeds.Feeds[list[int]] = _feeds.Feeds(1e6, threading.Event(), said)
        one = await open_feeds.join("numbers", "1", begun.at("1"))
        (source,), reading, go_on = begun.sources, threading.Event(), threading.Event()
        while source.looks < 2 or one.feed.lock.locked():  # the first poll of the feed
            await asyncio.sleep(0)

        def wait() -> None:
            reading.set()
            assert go_on.wait(10)

        source.around = wait
        numbers.append(2)
        other = asyncio.create_task(open_feeds.join("numbers", None, begun.at(None)))
        await asyncio.to_thread(reading.wait, 10)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        go_on.set()
        assert await asyncio.wait_for(heard(one, 2), 10) == [2]
        open_feeds.leave(one)
        while not source.closed:
            await asyncio.sleep(0)

    asyncio.run(story_())


def test_feed_that_fails_to_start_leaves_no_state() -> None:
    def fail() -> Written:
        raise exceptions.NotFound("it is not kept")

    async def story_() -> None:
        async with kind() as open_feeds:
            for _ in range(2):
                with pytest.raises(exceptions.NotFound):
                    await open_feeds.join("numbers", None, fail)
            numbers = Begun([1])
            assert await heard(await open_feeds.join("numbers", None, numbers.at(None)), 1) == [1]

    asyncio.run(story_())


def test_slow_listener_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a slow listener is bounded."""
    monkeypatch.setattr(_feeds, "_MAX_QUEUED", 2)
    numbers: list[int] = []
    begun = Begun(numbers)

    async def story_() -> None:
        async with kind() as open_feeds:
            slow = await open_feeds.join("numbers", None, begun.at(None))
            fast = await open_feeds.join("numbers", None, begun.at(None))
            for number in range(4):
                numbers.append(number)
                assert await heard(fast, number) == [number]
            seen = [turn.content async for turn in slow]
            assert seen == [[0], [1]], "it goes on from its cursor"

    asyncio.run(story_())


def test_deleted_source_ends_and_unreachable_source_is_polled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_feeds, "RETRY_SECONDS", 0.01)
    numbers: list[int] = []
    failures = [exceptions.StorageFailure("away"), exceptions.NotFound("gone")]
    errors: list[Exception] = []

    async def story_() -> None:
        source = Written(numbers)

        def fails() -> None:
            if numbers and source.looks > 3 and failures:
                raise failures.pop(0)

        source.around = fails
        open_feeds: _feeds.Feeds[list[int]] = _feeds.Feeds(0.0, threading.Event(), errors.append)
        listener = await open_feeds.join("numbers", None, lambda: source)
        numbers.append(1)
        assert [turn.content async for turn in listener] == [[1]]
        assert source.closed == 1 and [str(error) for error in errors] == ["away"]

    asyncio.run(story_())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the uuids of the polled flows, one entry per poll."""
    counted, read_changes = list[str](), flows.FlowRecords.read_changes

    def counting(records: flows.FlowRecords) -> base.Changes:
        counted.append(records.uuid)
        return read_changes(records)

    monkeypatch.setattr(flows.FlowRecords, "read_changes", counting)
    monkeypatch.setattr(_feeds, "IDLE_POLL_SECONDS", 1e6)
    return counted


def test_event_streams_of_one_flow_share_one_poll(kept: story.Kept, looks: list[str]) -> None:
    with running(kept.backend) as site, contextlib.ExitStack() as listening:
        path = f"/api/v1/flows/{kept.uuids['good']}/events/stream"
        first_events = [next(listening.enter_context(stream(site, path))) for _ in range(20)]
    assert all(each == first_events[0] for each in first_events)
    assert len(looks) <= 2  # first listener and one poll


def test_streams_of_one_page_share_one_poll(kept: story.Kept, looks: list[str]) -> None:
    uuid = kept.uuids["good"]
    with running(kept.backend) as site, contextlib.ExitStack() as listening:
        streams = [
            listening.enter_context(stream(site, f"/flows/{uuid}/stream")) for _ in range(20)
        ]
        for events in streams:
            next(events)  # the past events
        looks.clear()
        with contextlib.closing(kept.backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
            atom = next(iter(detail))
            atom.state = "RUNNING"
            connection.save_changes(detail, [atom])
        for events in streams:
            event = next(events)
            while not event["data"]["atoms"]:  # skip updates of the head
                event = next(events)
            assert any(each["uuid"] == atom.uuid for each in event["data"]["atoms"])
    assert 1 <= len(looks) <= 3  # feed, and view for the head


class Watched:
    """A flow whose atoms change, and a source of its events."""

    def __init__(self, kept: story.Kept) -> None:
        self.kept = kept
        self.uuid = kept.run("watched", story.good(20))
        with contextlib.closing(kept.backend.get_connection()) as connection:
            self.detail = connection.get_flow_details(self.uuid)
        self.atoms = iter(self.detail)
        self.changed: list[str] = []

    def change(self) -> None:
        atom = next(self.atoms)
        atom.state = "REVERTED"
        self.changed.append(atom.uuid)
        with contextlib.closing(self.kept.backend.get_connection()) as connection:
            connection.save_changes(self.detail, [atom])

    def source(self) -> streams._Flow:
        def watch(cursor: str | None) -> watcher.FlowWatcher:
            return watcher.FlowWatcher(self.kept.backend, self.uuid, cursor=cursor)

        source = streams._Flow(watch, None)
        source.poll()
        return source


def reverted(events: list[watcher.Event]) -> list[str]:
    return [event.uuid for event in events if event.state == "REVERTED"]


@pytest.mark.parametrize("often", [0, 1, 5])
def test_new_and_old_listeners_see_the_same_changes(
    monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    """The flow also changes between the polls for both."""
    watched = Watched(story.Kept())
    with contextlib.closing(watched.source()) as source:
        cursor, poll = source.cursor, watcher.FlowWatcher.poll
        watched.change()

        def changing(watch: watcher.FlowWatcher) -> list[watcher.Event]:
            polled = poll(watch)
            if len(watched.changed) <= often:
                watched.change()
            return polled

        monkeypatch.setattr(watcher.FlowWatcher, "poll", changing)
        news, missed = source.join(cursor)
        assert news is not None
        later = source.poll() or []
    for events in (news, missed):
        assert reverted([*events, *later]) == watched.changed


def test_listener_of_a_constantly_changing_flow_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_MAX_TRIES", 3)
    watched = Watched(story.Kept())
    with contextlib.closing(watched.source()) as source:
        cursor, poll = source.cursor, watcher.FlowWatcher.poll

        def changing(watch: watcher.FlowWatcher) -> list[watcher.Event]:
            polled = poll(watch)
            watched.change()
            return polled

        with monkeypatch.context() as patched:
            patched.setattr(watcher.FlowWatcher, "poll", changing)
            news, missed = source.join(cursor)
        assert news is not None
        later = source.poll() or []
    assert reverted([*news, *later]) == watched.changed
    assert set(reverted([*missed, *later])) == set(watched.changed)


def test_events_are_kept_when_the_poll_for_a_join_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(story.Kept())
    with contextlib.closing(watched.source()) as source:
        poll, turns = watcher.FlowWatcher.poll, list[watcher.FlowWatcher]()

        def failing(watch: watcher.FlowWatcher) -> list[watcher.Event]:
            turns.append(watch)
            if len(turns) > 2:
                raise exceptions.StorageFailure("away")
            polled = poll(watch)
            watched.change()
            return polled

        watched.change()
        with monkeypatch.context() as patched:
            patched.setattr(watcher.FlowWatcher, "poll", failing)
            with pytest.raises(exceptions.StorageFailure):
                source.join(source.cursor)
        assert reverted(source.poll() or []) == watched.changed


def states(told: dict[str, Any]) -> dict[str, str]:
    return {atom["name"]: atom["state"] for atom in told["data"]["atoms"]}


def test_stream_continues_from_last_event_id(running: Running) -> None:
    with serving(running.kept.backend) as site:
        path = f"{running.path}/stream"
        seen: dict[str, str] = {}
        with stream(site, path) as events:
            for event in events:
                assert event["event"] == "turn" and event["id"]
                seen |= states(event)
                if seen.get("b") == "RUNNING":
                    break
        assert seen["a"] == "SUCCESS"
        running.end()
        # The flow has ended while no stream was open.
        with stream(site, path, last=event["id"]) as events:
            event = next(events)
            later = states(event)
            while not event["data"]["ended"]:
                event = next(events)
                later |= states(event)
        assert later == {"b": "SUCCESS", "c": "SUCCESS"}  # and not "a" again
        assert event["data"]["state"] == "SUCCESS"


def test_events_of_a_flow_are_streamed_one_by_one(kept: story.Kept) -> None:
    with serving(kept.backend) as site:
        path = f"/api/v1/flows/{kept.uuids['good']}/events/stream"
        with stream(site, path) as events:
            first_events = [next(events) for _ in range(5)]
    assert all(each["data"]["schema"] == "wbengine/event/1" for each in first_events)


def test_stream_of_the_list_sends_changed_rows() -> None:
    flows = story.Kept()
    flows.run("one", story.good(name="one"))
    with serving(flows.backend) as site:
        with stream(site, "/stream/flows") as events:
            event = next(events)  # without a cursor, the first event is immediate
            flows.run("two", story.good(name="two"))
            later = next(events)
        assert event["data"]["changed"] and event["id"] != later["id"]
        one, two = flows.uuids["one"], flows.uuids["two"]
        assert not later["data"]["changed"] and later["data"]["order"] == [two, one]
        assert set(later["data"]["rows"]) == {two}, "that of the other has not changed"
        assert f'id="r-{two}"' in later["data"]["rows"][two]
        with stream(site, "/stream/flows", last=later["id"]) as events:
            flows.run("three", story.good(name="three"))
            assert next(events)["id"] != later["id"]


def test_server_with_an_open_stream_ends(kept: story.Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace periods exceed any delay, so the stream ends without being aborted."""
    monkeypatch.setattr(streams, "ENDING_SECONDS", 40)
    monkeypatch.setattr(servers, "_GRACE_SECONDS", 50)
    with serving(kept.backend) as site, stream(site, "/stream/flows") as events:
        next(events)
        site.stop()
        assert list(events) == []  # the stream has ended


def test_keepalive_is_not_sent_within_an_event() -> None:
    """A ping is due while a long text is sent in pieces."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        sent.append(message["body"])

    async def story_() -> None:
        visit = _authentication._ResponseState({}, send)
        texts = [b"x" * 300_000, b": ping", b"y" * 300_000]
        messages = (
            {"type": "http.response.body", "body": text, "more_body": True} for text in texts
        )
        await asyncio.gather(*map(visit.send, messages))
        assert b"".join(sent) == b"".join(texts)
        assert max(map(len, sent)) < 100_000

    asyncio.run(story_())
