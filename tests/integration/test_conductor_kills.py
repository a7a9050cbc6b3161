"""Killed conductors: other conductors take over their jobs and resume the flows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support import conducted, python, servers
from tests.support.waiting import until
from wbengine import states
from wbengine.jobs import base as jobs
from wbengine.persistence import base as persistence

FLOWS, KILLS, CONDUCTORS = 12, 8, 3


class Conductors:
    """Processes that conduct the board of a database."""

    def __init__(self, uri: str, folder: Path, claim_seconds: float) -> None:
        self._command = ["-m", "tests.support.conducted", uri, str(folder)]
        self._command.append(str(claim_seconds))
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._processes.append(python.start(self._command, cwd=servers.REPOSITORY))

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            if process.pid == pid:
                process.wait()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def check(store: persistence.Backend, folder: Path, posted: dict[str, str]) -> None:
    """Assert that each flow has ended exactly once."""
    consumed = Counter(conducted.notes(folder, "consumed"))
    assert set(consumed) <= set(posted) and set(consumed.values()) <= {1}
    with contextlib.closing(store.get_connection()) as connection:
        assert {connection.get_flow_details(uuid).state for uuid in posted.values()} == {
            states.SUCCESS
        }
    conducted.check_runs(folder, len(posted))


def test_flows_of_killed_conductors_complete_exactly_once(
    uri: str, store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    posted = {}
    for number in range(FLOWS):
        inputs = {"folder": str(tmp_path), "value": number, "nap": 0.2}
        job, uuid = conducted.post(board, store, conducted.audited, f"flow{number}", inputs=inputs)
        posted[job.uuid] = uuid
    with contextlib.closing(Conductors(uri, tmp_path, claim_seconds=1.5)) as conductors:
        for _ in range(CONDUCTORS):
            conductors.start()
        killed: set[str] = set()
        while len(killed) < KILLS:
            begun = conducted.notes(tmp_path, "conductors")
            ran = len(conducted.notes(tmp_path, "runs"))
            if alive := [pid for pid in begun if pid not in killed]:
                # Kill it during a task or between two tasks.
                until(lambda ran=ran: len(conducted.notes(tmp_path, "runs")) > ran)
                pid = random.choice(alive)
                conductors.kill(int(pid))
                killed.add(pid)
                conductors.start()
        until(lambda: board.job_count == 0, within=60)
    check(store, tmp_path, posted)


@pytest.mark.slow  # the test waits until the claim of the dead conductor expires
def test_flow_of_dead_conductor_is_taken_over_within_20_seconds(
    uri: str, store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    inputs = {"folder": str(tmp_path), "value": 0, "nap": 1.0}
    job, uuid = conducted.post(board, store, conducted.audited, "flow", inputs=inputs)
    with contextlib.closing(Conductors(uri, tmp_path, claim_seconds=15)) as conductors:
        conductors.start()
        until(lambda: len(conducted.notes(tmp_path, "runs")) == 2)
        [pid] = conducted.notes(tmp_path, "conductors")
        conductors.start()
        conductors.kill(int(pid))
        until(lambda: len(conducted.notes(tmp_path, "runs")) == 3, within=20)
        until(lambda: board.job_count == 0)
    check(store, tmp_path, {job.uuid: uuid})
