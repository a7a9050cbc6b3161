"""Flows of `wbengine serve` processes that are killed."""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path

from tests.support import conducted, python, servers
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.jobs import base as jobs
from wbengine.persistence import base as persistence

FLOWS, KILLS, SERVING = 12, 5, 3


def serve(uri: str) -> subprocess.Popen[bytes]:
    command = ["-m", "wbengine", "serve", "--persistence", uri, "--quiet"]
    return python.start(
        [*command, "--max-simultaneous", "2"],
        cwd=servers.REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_submitted_flows_end_once_while_serve_is_killed(
    uri: str, store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    """No task with a saved result runs again."""
    handles = [
        engines.submit(
            conducted.audited,
            [f"flow{number}"],
            backend=store,
            inputs={"folder": str(tmp_path), "value": number, "nap": 0.2},
        )
        for number in range(FLOWS)
    ]
    serving = [serve(uri) for _ in range(SERVING)]
    try:
        for _ in range(KILLS):
            before = len(conducted.notes(tmp_path, "runs"))
            # At any moment, in a task or between two tasks.
            until(lambda before=before: len(conducted.notes(tmp_path, "runs")) > before + 1)
            victim = serving.pop(random.randrange(len(serving)))
            victim.kill()
            victim.wait()
            serving.append(serve(uri))
        until(lambda: board.job_count == 0, within=90)
    finally:
        for process in serving:
            process.kill()
            process.wait()
    with contextlib.closing(store.get_connection()) as connection:
        assert len(connection.list_flows().flows) == FLOWS
        for handle in handles:
            assert handle.state == states.SUCCESS
            record = connection.get_flow_details(handle.id)
            assert [one.state for one in record.history if one.state in _ENDS] == [states.SUCCESS]
    conducted.check_runs(tmp_path, FLOWS)


_ENDS = (states.SUCCESS, states.FAILURE, states.REVERTED)
