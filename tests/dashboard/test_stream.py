"""Event streams: updates and continuation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.held import Running
from tests.dashboard.site import running as serving
from tests.dashboard.site import stream
from wbengine.dashboard import _authentication
from wbengine.dashboard import _site as servers
from wbengine.dashboard import _stream as streams


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
