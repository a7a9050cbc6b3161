"""News as it happens, and where it goes on after a break."""

from __future__ import annotations

import contextlib
import socket
import urllib.parse
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.held import Running
from tests.dashboard.site import PATIENCE, stream
from tests.dashboard.site import running as serving
from wbengine.dashboard import serving as servers
from wbengine.dashboard import stream as streams


def states(told: dict[str, Any]) -> dict[str, str]:
    return {atom["name"]: atom["state"] for atom in told["data"]["atoms"]}


def test_a_stream_tells_what_happens_and_goes_on_after_a_break(running: Running) -> None:
    with serving(running.kept.backend) as site:
        path = f"{running.path}/stream"
        seen: dict[str, str] = {}
        with stream(site, path) as events:
            for told in events:
                assert told["event"] == "turn" and told["id"]
                seen |= states(told)
                if seen.get("b") == "RUNNING":
                    break
        assert seen["a"] == "SUCCESS"
        running.end()
        # Nobody listened meanwhile.
        with stream(site, path, last=told["id"]) as events:
            told = next(events)
            later = states(told)
            while not told["data"]["ended"]:
                told = next(events)
                later |= states(told)
        assert later == {"b": "SUCCESS", "c": "SUCCESS"}  # and not "a" again
        assert told["data"]["state"] == "SUCCESS"


def test_the_events_of_a_flow_are_told_one_by_one(kept: story.Kept) -> None:
    with serving(kept.backend) as site:
        path = f"/api/v1/flows/{kept.uuids['good']}/events/stream"
        with stream(site, path) as events:
            told = [next(events) for _ in range(5)]
    assert all(each["data"]["schema"] == "wbengine/event/1" for each in told)


def test_the_list_tells_that_it_has_changed() -> None:
    kept = story.Kept()
    kept.run("one", story.good(name="one"))
    with serving(kept.backend) as site:
        with stream(site, "/stream/flows") as events:
            told = next(events)  # who knows nothing is told at once
            kept.run("two", story.good(name="two"))
            later = next(events)
        assert told["data"]["changed"] and told["id"] != later["id"]
        one, two = kept.uuids["one"], kept.uuids["two"]
        assert not later["data"]["changed"] and later["data"]["order"] == [two, one]
        assert set(later["data"]["rows"]) == {two}, "that of the other has not changed"
        assert f'id="r-{two}"' in later["data"]["rows"][two]
        with stream(site, "/stream/flows", last=later["id"]) as events:
            kept.run("three", story.good(name="three"))
            assert next(events)["id"] != later["id"]


def test_a_server_ends_although_somebody_listens(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: it has more time than it takes on any machine."""
    monkeypatch.setattr(streams, "ENDING", 40)
    monkeypatch.setattr(servers, "_GRACE", 50)
    with serving(kept.backend) as site, stream(site, "/stream/flows") as events:
        next(events)
        site.stop()
        assert list(events) == []  # it is over, rather than silent


def test_no_more_streams_are_served_than_there_is_room_for(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST", 5)
    with serving(kept.backend) as site, contextlib.ExitStack() as open_ones:
        where = urllib.parse.urlsplit(site.address)
        assert where.port is not None
        asking = [
            "GET /stream/flows HTTP/1.1",
            f"host: {where.hostname}",
            f"authorization: Bearer {story.TOKEN}",
        ]
        asked = "\r\n".join([*asking, "", ""]).encode()
        sockets = [
            open_ones.enter_context(
                socket.create_connection((where.hostname, where.port), PATIENCE)
            )
            for _ in range(40)
        ]
        for each in sockets:  # all at once
            each.sendall(asked)
        said = [each.makefile("rb").readline().split()[1] for each in sockets]
        assert (said.count(b"200"), said.count(b"503")) == (5, 35)
