"""Whatever changes is looked at once for all, and each who listens hears each turn once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from tests.dashboard import story
from tests.dashboard.site import running, stream
from wbengine import exceptions
from wbengine.dashboard import feeds
from wbengine.persistence import base
from wbengine.views import flow as flows


class Written(feeds.Source[list[int]]):
    """Numbers that are written one after the other; a cursor is how many of them were seen."""

    def __init__(self, numbers: list[int], seen: int = 0) -> None:
        self.numbers = numbers
        self.seen = seen
        self.looks = self.closed = 0
        #: Called at each look, before and after it.
        self.around: Callable[[], None] = lambda: None

    @property
    def cursor(self) -> str | None:  # type: ignore[override]
        return str(self.seen)

    def turn(self) -> list[int] | None:
        self.looks += 1
        self.around()
        found = self.numbers[self.seen :]
        self.seen += len(found)
        self.around()
        return found or None

    def close(self) -> None:
        self.closed += 1


def said(error: Exception) -> None:
    raise AssertionError from error


@contextlib.asynccontextmanager
async def kind() -> AsyncIterator[feeds.Feeds[list[int]]]:
    """Feeds that are looked at without a rest."""
    closing = threading.Event()
    yield feeds.Feeds(0.0, closing, said)
    closing.set()


async def heard(listener: feeds.Listener[list[int]], last: int) -> list[int]:
    """All that is told until that number."""
    found: list[int] = []
    async for turn in listener:
        found += turn.found
        if last in found:
            return found
    raise AssertionError("it has ended")


@pytest.mark.parametrize("often", [1, 3])
def test_a_newcomer_misses_nothing_and_hears_nothing_twice(often: int) -> None:
    """Although more is written at each of its first looks."""
    numbers = [1, 2]
    busy = iter(range(3, 3 + often))

    def write() -> None:
        if (number := next(busy, None)) is not None:
            numbers.append(number)

    async def story_() -> None:
        async with kind() as found:
            first, later = Written(numbers, 2), Written(numbers)
            one = await found.join("numbers", first)
            later.around = write
            other = await found.join("numbers", later)
            assert other.feed is one.feed and later.closed == 1, "they listen to the same"
            numbers.append(99)
            assert await heard(other, 99) == [*range(1, 3 + often), 99]
            assert await heard(one, 99) == [*range(3, 3 + often), 99]
            found.leave(one)
            assert first.closed == 0
            found.leave(other)
            assert first.closed == 1

    asyncio.run(story_())


def test_where_too_much_happens_one_listens_alone() -> None:
    numbers = [1]

    async def story_() -> None:
        async with kind() as found:
            first, later = Written(numbers), Written(numbers)
            first.around = lambda: numbers.append(len(numbers) + 1)  # at each look
            one = await found.join("numbers", first)
            other = await found.join("numbers", later)
            assert other.feed is not one.feed and later.closed == 0
            assert (await heard(other, 50))[:50] == list(range(1, 51))
            found.leave(one)
            found.leave(other)
            assert later.closed == 1

    asyncio.run(story_())


def test_who_comes_as_the_last_one_leaves_is_told_all_the_same() -> None:
    """As where a page is loaded again."""
    numbers = [1]

    async def story_() -> None:
        async with kind() as found:
            first, later, gone = Written(numbers), Written(numbers), threading.Event()
            one = await found.join("numbers", first)
            loop = asyncio.get_running_loop()

            def leave() -> None:
                found.leave(one)
                gone.set()

            def last_leaves() -> None:
                if later.looks == 2 and not gone.is_set():  # while it looks what the other has seen
                    loop.call_soon_threadsafe(leave)
                    assert gone.wait(10)

            later.around = last_leaves
            other = await found.join("numbers", later)
            numbers.append(2)
            assert await asyncio.wait_for(heard(other, 2), 10) == [1, 2]
            assert first.closed == 1 and later.closed == 0

    asyncio.run(story_())


def test_who_is_far_behind_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for slow readers is bounded."""
    monkeypatch.setattr(feeds, "_TURNS", 2)
    numbers: list[int] = []

    async def story_() -> None:
        async with kind() as found:
            slow = await found.join("numbers", Written(numbers))
            fast = await found.join("numbers", Written(numbers))
            for number in range(4):
                numbers.append(number)
                assert await heard(fast, number) == [number]
            seen = [turn.found async for turn in slow]
            assert seen == [[0], [1]], "it goes on from its cursor"

    asyncio.run(story_())


def test_what_is_gone_ends_and_what_is_away_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "AGAIN", 0.01)
    numbers: list[int] = []
    failures = [exceptions.StorageFailure("away"), exceptions.NotFound("gone")]
    told: list[Exception] = []

    async def story_() -> None:
        source = Written(numbers)

        def fails() -> None:
            if numbers and source.looks > 3 and failures:
                raise failures.pop(0)

        source.around = fails
        found: feeds.Feeds[list[int]] = feeds.Feeds(0.0, threading.Event(), told.append)
        listener = await found.join("numbers", source)
        numbers.append(1)
        assert [turn.found async for turn in listener] == [[1]]
        assert source.closed == 1 and [str(error) for error in told] == ["away"]

    asyncio.run(story_())


def test_many_who_look_at_one_flow_cost_no_more_looks_than_one(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], flows.FlowRecords.look
    uuid = kept.uuids["good"]

    def counted(records: flows.FlowRecords) -> base.Changes:
        looks.append(1)
        return look(records)

    with running(kept.backend) as site, contextlib.ExitStack() as listening:
        path = f"/flows/{uuid}/stream"
        monkeypatch.setattr(feeds, "TICK", 1e6)
        streams = [listening.enter_context(stream(site, path)) for _ in range(20)]
        for events in streams:
            next(events)  # what has happened so far
        monkeypatch.setattr(flows.FlowRecords, "look", counted)
        with contextlib.closing(kept.backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
            atom = next(iter(detail))
            atom.state = "RUNNING"
            connection.save_changes(detail, [atom])
        for events in streams:
            assert any(each["uuid"] == atom.uuid for each in next(events)["data"]["atoms"])
    assert 1 <= len(looks) <= 3  # of the feed, and of the view that its head is made of
