"""Processes that fire schedules are killed, and the clock is set: each tick is fired once."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.contract import places
from tests.support import scheduled, servers
from tests.support.waiting import until
from wbengine.persistence import backends
from wbengine.schedules import Schedule, Schedules

PROCESSES, NAMES = 3, ("a", "b", "c", "d")


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Lazy
) -> Iterator[str]:
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


def serve(uri: str, file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.scheduled", uri, str(file)],
        cwd=servers.REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def check(uri: str, folder: Path, firings: int, kills: int) -> None:
    """Let so many ticks be fired, while processes are killed and the clock jumps to and fro."""
    file = folder / "ahead"
    set_clock(file, 0)
    chance = random.Random()
    with backends.backend(uri) as backend:
        kept = Schedules(backend, clock=functools.partial(scheduled.clock, str(file)))
        for name in NAMES:
            kept.add(
                Schedule(
                    name=name,
                    factory="tests.support.conducted:greeting",
                    every=1,
                    catch_up="all",
                    overlap="allow",
                    inputs={"name": name},
                )
            )
        first = {entry.name: entry.next_tick for entry in kept.all()}
        serving = [serve(uri, file) for _ in range(PROCESSES)]
        ahead, step = 0.0, firings / len(NAMES) / kills
        try:
            for number in range(kills):
                # It goes on by as much as there is to fire, and now and then back.
                ahead += step if number % 4 else step * 1.5
                set_clock(file, ahead - (step * 0.5 if number % 4 == 2 else 0))
                before = count(backend)
                enough = before + chance.randrange(20)
                until(lambda enough=enough: count(backend) > enough, 60)  # type: ignore[misc]
                victim = serving.pop(chance.randrange(len(serving)))
                victim.kill()
                victim.wait()
                serving.append(serve(uri, file))
            set_clock(file, ahead)
            until(lambda: count(backend) >= firings, 120)
            for name in NAMES:
                kept.pause(name)
            time.sleep(0.5)  # for one that was firing: nothing may come any more
        finally:
            for process in serving:
                process.kill()
                process.wait()
        expected = {
            entry.schedule.flow_id(tick): (entry.name, tick)
            for entry in kept.all()
            for tick in range(first[entry.name], entry.next_tick)
        }
        with backend.engine.connect() as raw:  # type: ignore[attr-defined]
            found = raw.execute(sa.text("SELECT uuid FROM wbe_flowdetails")).scalars().all()
            waiting = raw.execute(sa.text("SELECT uuid FROM wbe_jobs")).scalars().all()
            done = raw.execute(
                sa.text("SELECT uuid FROM wbe_flowdetails WHERE state = 'SUCCESS'")
            ).scalars()
            unfinished = set(found) - set(done)
    assert len(found) == len(set(found)) == len(expected) >= firings
    assert set(found) == expected.keys()
    # Each has its job, until it has ended.
    assert unfinished <= set(waiting) and len(set(waiting)) == len(waiting)
    print(f"{len(found)} firings of {len(NAMES)} schedules, {kills} kills: each once")


def set_clock(file: Path, ahead: float) -> None:
    file.with_suffix(".new").write_text(str(ahead))
    os.replace(file.with_suffix(".new"), file)


def count(backend: Any) -> int:
    with contextlib.closing(backend.engine.connect()) as raw:
        return int(raw.scalar(sa.text("SELECT count(*) FROM wbe_flowdetails")))


def test_each_tick_is_fired_once_while_processes_are_killed(uri: str, tmp_path: Path) -> None:
    check(uri, tmp_path, firings=200, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_ticks_are_fired_once_each(uri: str, tmp_path: Path) -> None:
    check(uri, tmp_path, firings=10_000, kills=25)
