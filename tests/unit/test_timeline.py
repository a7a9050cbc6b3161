"""Recorded functions and critical paths of `tools/bench --timeline`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import python
from tools.benching import tables, timeline
from tools.benching.drivers import recording
from tools.benching.timeline import BROKER, ENGINE, HAND_OVER, OTHER, WORKER, Call

LOOP, RECEIVER, SLOT, HEARTBEAT = 1, 2, 3, 4
SEND = "wbengine.transports._redis_link:Link.send_all"
PUBLISH = "wbengine.transports._redis:RedisBroker.publish_with"
RECEIVE = "wbengine.transports._redis_wait:BlockingWait._ready"


def _function(name: str) -> str:
    (function,) = (each for each in timeline.FUNCTIONS if each.endswith(f":{name}"))
    return function


def _call(name: str, thread: int, start: int, end: int) -> Call:
    return Call(_function(name), thread, start, end)


#: One hop of 1,000 ns: request, task and reply.
CALLS = {
    ENGINE: [
        Call(timeline.SUBMIT, LOOP, 0, 150),
        _call("Request.encode", LOOP, 10, 40),
        Call(PUBLISH, LOOP, 50, 140),
        Call(SEND, LOOP, 60, 130),
        _call("Run._wait", LOOP, 160, 950),
        Call(RECEIVE, RECEIVER, 20, 850),
        _call("RequestTracker.on_reply", RECEIVER, 860, 890),
        _call("Run._done", RECEIVER, 900, 940),
        _call("LedgerWriter.drop", RECEIVER, 945, 990),  # beside the path
        _call("Run._schedule", LOOP, 960, 1000),
        Call(timeline.SUBMIT, LOOP, 1000, 1100),
    ],
    WORKER: [
        Call(PUBLISH, HEARTBEAT, 0, 9),
        Call(SEND, HEARTBEAT, 1, 8),
        Call(RECEIVE, RECEIVER, 0, 200),
        _call("TaskRunner.take", RECEIVER, 200, 260),
        _call("Server.on_request", RECEIVER, 210, 230),
        _call("Pool.submit", RECEIVER, 240, 250),
        _call("Pool._take_call", SLOT, 0, 300),
        _call("Endpoint.begin", SLOT, 310, 400),
        Call("threading:RLock", SLOT, 400, 500),
        Call(PUBLISH, SLOT, 500, 800),
        Call(SEND, SLOT, 510, 700),
        Call(SEND, SLOT, 820, 840),  # publishes nothing
    ],
}


def test_critical_path_of_hop_is_attributed_to_parts_of_both_sides() -> None:
    (hop,) = timeline.Paths(CALLS).hops(1, 2)
    assert dict(+hop) == {
        (ENGINE, "shells of engine and worker"): 20,
        (ENGINE, "encode"): 30 + 10,
        (WORKER, BROKER): 200 - 60,
        (WORKER, "shells of engine and worker"): 10 + 10,
        (WORKER, "decisions"): 20,
        (WORKER, HAND_OVER): 300 - 240,
        (WORKER, OTHER): 10,
        (WORKER, "task"): 90,
        (WORKER, "lock waits"): 100,
        (WORKER, "encode"): 10,
        (ENGINE, BROKER): 850 - 510,
        (ENGINE, "decisions"): 30,
        (ENGINE, OTHER): 10 + 10 + 10,
        (ENGINE, HAND_OVER): 950 - 900,
        (ENGINE, "run loop and records"): 40,
    }
    assert hop.total() == 1000


def test_time_before_wait_without_signal_is_unexplained() -> None:
    calls = {ENGINE: [call for call in CALLS[ENGINE] if call.thread == LOOP], WORKER: []}
    (hop,) = timeline.Paths(calls).hops(1, 2)
    assert dict(+hop) == {(ENGINE, OTHER): 960, (ENGINE, "run loop and records"): 40}


def test_time_between_two_chains_is_no_hop() -> None:
    starts = (0, 10, 20, 500, 511, 522)
    calls = {ENGINE: [Call(timeline.SUBMIT, LOOP, at, at + 5) for at in starts], WORKER: []}
    assert [hop.total() for hop in timeline.Paths(calls).hops(2, 3)] == [10, 10, 11, 11]


def test_table_shows_parts_of_both_sides_and_explained_share() -> None:
    parts = {ENGINE: {"decode": 20.0, OTHER: 10.0}, WORKER: {"decode": 70.0}}
    found = timeline.Timeline("redis", 199, 80.0, 90.0, 0.25, 30.0, parts)
    (grid,) = tables.timelines({"timelines": [found.to_dict()]})
    assert [[*row[:5]] for row in grid.rows[:4]] == [
        ["decode", "20", "70", "90", "90 %"],
        ["other", "10", "", "10", "10 %"],
        ["hop", "30", "70", "100", "90 % explained"],
        ["hop without recording", "", "", "80", "recording: +25 %"],
    ]


def test_all_recorded_functions_exist() -> None:
    timeline.check()


@pytest.mark.parametrize(
    "name", ["wbengine.absent:run", "wbengine.task:Task.absent", "wbengine.task:Absent.run"]
)
def test_missing_function_is_named(name: str) -> None:
    with pytest.raises(LookupError, match=f"{name} does not exist"):
        recording.find(name)


def test_functions_of_other_tables_are_recorded() -> None:
    named = {*timeline.WAITS, *timeline.WAITS.values(), *timeline.RECEIVES}
    named |= {*timeline.SENDS, *timeline.SENDS.values()}
    assert named <= {*timeline.FUNCTIONS}


def test_process_writes_its_recorded_calls(tmp_path: Path) -> None:
    program = (
        "import recording, pathlib, urllib.parse as p\n"
        "names = ['urllib.parse:quote', 'urllib.parse:SplitResult.geturl']\n"
        f"recording.install(names, pathlib.Path({str(tmp_path / 'calls')!r}))\n"
        "p.quote('x'), p.quote('y'), p.urlsplit('http://h').geturl()\n"
    )
    folder = Path(recording.__file__).parent
    python.run(["-c", program], cwd=folder, check=True)
    text = (tmp_path / "calls").read_text(encoding="utf-8")
    assert [number for number, *_ in json.loads(text)] == [0, 0, 1]


class _Lock:
    """A lock that another thread holds or not."""

    def __init__(self, free: bool) -> None:
        self.free = free

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self.free or blocking

    def release(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("free", [True, False])
def test_only_blocking_acquisitions_of_locks_are_recorded(
    free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, int, int]] = []
    monkeypatch.setattr(recording, "_calls", calls)
    lock = recording._RecordedLock(7, _Lock(free))
    with lock:
        pass
    assert lock.acquire(False) == free
    assert lock.acquire(timeout=1)
    assert [number for number, *_ in calls] == ([] if free else [7, 7])
