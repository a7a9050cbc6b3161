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
from wbengine.views import watcher


class Written:
    """Numbers that are written one after the other; a cursor is how many of them were seen."""

    due = float("inf")

    def __init__(self, numbers: list[int], seen: int = 0) -> None:
        self.numbers = numbers
        self.seen = seen
        self.looks = self.closed = 0
        #: Called at each look, before and after it.
        self.around: Callable[[], None] = lambda: None

    @property
    def cursor(self) -> str | None:
        return str(self.seen)

    def turn(self) -> list[int] | None:
        self.looks += 1
        self.around()
        found = self.numbers[self.seen :]
        self.seen += len(found)
        self.around()
        return found or None

    def weight(self, found: list[int]) -> int:
        return len(found)

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


Joined = tuple[feeds.Feed[list[int]], int, list[feeds.Turn[list[int]]]]


async def heard(joined: Joined, last: int) -> list[int]:
    """All that is told until that number."""
    feed, number, turns = joined
    found = [each for turn in turns for each in turn.found]
    while last not in found:
        turn = await feed.after(number)
        assert turn is not None
        number += 1
        found += turn.found
    return found


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
            one = await found.join("numbers", first, None)
            later.around = write
            other = await found.join("numbers", later, later.turn())
            assert other[0] is one[0] and later.closed == 1, "they listen to the same"
            numbers.append(99)
            assert await heard(other, 99) == [*range(1, 3 + often), 99]
            assert await heard(one, 99) == [*range(3, 3 + often), 99]
            found.leave(one[0])
            assert first.closed == 0
            found.leave(other[0])
            assert first.closed == 1

    asyncio.run(story_())


def test_where_too_much_happens_one_listens_alone() -> None:
    numbers = [1]

    async def story_() -> None:
        async with kind() as found:
            first, later = Written(numbers), Written(numbers)
            first.around = lambda: numbers.append(len(numbers) + 1)  # at each look
            one = await found.join("numbers", first, None)
            other = await found.join("numbers", later, None)
            assert other[0] is not one[0] and later.closed == 0
            assert (await heard(other, 50))[:50] == list(range(1, 51))
            found.leave(one[0])
            found.leave(other[0])
            assert later.closed == 1

    asyncio.run(story_())


def test_who_is_far_behind_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for slow readers is bounded."""
    monkeypatch.setattr(feeds, "_HELD", 10)
    numbers: list[int] = []

    async def story_() -> None:
        async with kind() as found:
            slow = await found.join("numbers", Written(numbers), None)
            feed, number, _ = await found.join("numbers", Written(numbers), None)
            for turn in range(4):
                numbers.extend(range(turn * 5, turn * 5 + 5))
                assert await feed.after(number + turn) is not None
            assert await feed.after(slow[1]) is None, "it goes on from its cursor"
            assert await feed.after(slow[1] + 3) is not None

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
        feed, number, _ = await found.join("numbers", source, None)
        numbers.append(1)
        while failures:
            turn = await feed.after(number)
            number += 1
        assert turn is None or await feed.after(number) is None
        assert source.closed == 1 and [str(error) for error in told] == ["away"]

    asyncio.run(story_())


def test_many_who_look_at_one_flow_cost_no_more_looks_than_one(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], watcher.FlowRecords.look
    uuid = kept.uuids["good"]

    def counted(records: watcher.FlowRecords) -> base.Changes:
        looks.append(1)
        return look(records)

    with running(kept.backend) as site, contextlib.ExitStack() as listening:
        path = f"/flows/{uuid}/stream"
        monkeypatch.setattr(feeds, "TICK", 1e6)
        streams = [listening.enter_context(stream(site, path)) for _ in range(20)]
        for events in streams:
            next(events)  # what has happened so far
        monkeypatch.setattr(watcher.FlowRecords, "look", counted)
        with contextlib.closing(kept.backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
            atom = next(iter(detail))
            atom.state = "RUNNING"
            connection.save_changes(detail, [atom])
        for events in streams:
            assert any(each["uuid"] == atom.uuid for each in next(events)["data"]["atoms"])
    assert 1 <= len(looks) <= 3  # of the feed, and of the view that its head is made of
