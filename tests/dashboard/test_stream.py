"""News as it happens, and where it goes on after a break."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.site import PATIENCE, running, stream
from wbengine import engines, task
from wbengine.dashboard import serving
from wbengine.dashboard import stream as streams
from wbengine.patterns import linear_flow
from wbengine.persistence import base

GO = threading.Event()


class Waits(task.Task):
    def execute(self) -> None:
        assert GO.wait(PATIENCE)


def states(told: dict[str, Any]) -> dict[str, str]:
    return {atom["name"]: atom["state"] for atom in told["data"]["atoms"]}


def test_a_stream_tells_what_happens_and_goes_on_after_a_break() -> None:
    GO.clear()
    kept = story.Kept()
    flow = linear_flow.Flow("slow").add(story.Fine("before"), Waits("waits"), story.Fine("after"))
    detail = base.create_flow_detail(flow, backend=kept.backend)
    engine = engines.load(flow, flow_detail=detail, backend=kept.backend, engine="serial")
    thread = threading.Thread(target=engine.run)
    with running(kept.backend) as site:
        path = f"/flows/{detail.uuid}/stream"
        thread.start()
        seen: dict[str, str] = {}
        with stream(site, path) as events:
            for told in events:
                assert told["event"] == "turn" and told["id"]
                seen |= states(told)
                if seen.get("waits") == "RUNNING":
                    break
        assert seen["before"] == "SUCCESS"
        GO.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        # Nobody listened meanwhile.
        with stream(site, path, last=told["id"]) as events:
            told = next(events)
            later = states(told)
            while not told["data"]["ended"]:
                told = next(events)
                later |= states(told)
        assert later == {"waits": "SUCCESS", "after": "SUCCESS"}  # and not "before" again
        assert told["data"]["state"] == "SUCCESS"


def test_the_events_of_a_flow_are_told_one_by_one(kept: story.Kept) -> None:
    with running(kept.backend) as site:
        path = f"/api/v1/flows/{kept.uuids['good']}/events/stream"
        with stream(site, path) as events:
            told = [next(events) for _ in range(5)]
    assert all(each["data"]["schema"] == "wbengine/event/1" for each in told)


def test_the_list_tells_that_it_has_changed() -> None:
    kept = story.Kept()
    kept.run("one", story.good(name="one"))
    with running(kept.backend) as site:
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
    monkeypatch.setattr(serving, "_GRACE", 50)
    with running(kept.backend) as site, stream(site, "/stream/flows") as events:
        next(events)
        site.stop()
        assert list(events) == []  # it is over, rather than silent


def test_no_more_streams_are_served_than_there_is_room_for(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST", 5)
    with running(kept.backend) as site, contextlib.ExitStack() as open_ones:
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
