"""Program that kills a run of a workflow that continues as new at each crash point in turn.

    python -m tests.support.continued_kills STORE FOLDER

The workflow adds numbers up to `LIMIT`, each in an attempt of its own. The effects are lines of a
file. The program prints the number of kills, and fails if a promise is broken.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from wbengine import engines, states, task
from wbengine._concurrency import crash_points
from wbengine.persistence import backends, models
from wbengine.steps import Steps

LIMIT = 2
KILLED = 9


@task.task
def add(number: int, log: str) -> int:
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{number}\n")
    return number + 1


@task.workflow
def count(steps: Steps, log: str, number: int = 0) -> int:
    number = steps.run(add, number, log)
    received = steps.wait_for("go")
    assert received == number, (received, number)
    if number < LIMIT:
        steps.continue_as_new(number=number)
    return number


def in_child(do: Callable[..., object], *args: object) -> int:
    """Call a function in a forked process; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            do(*args)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def submit(url: str, log: Path, uuid_file: Path) -> None:
    with backends.backend(url) as store:
        engine = engines.load(count, backend=store, store={"log": str(log)})
        for number in range(1, LIMIT + 1):
            engine.signal("go", number)
        uuid_file.write_text(engine.storage.flow_uuid, encoding="utf-8")


def run(url: str, uuid: str, kill_at: int) -> None:
    """Run the flow; exit at a crash point with this number, from 1."""
    with backends.backend(url) as store:
        flow = store.get_connection().get_flow_details(uuid)
        engine = engines.load(count, backend=store, flow_detail=flow)
        left = kill_at

        def hook(name: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                os._exit(KILLED)

        crash_points.install(hook)
        engine.run()


def check(url: str, uuid: str, log: Path, was_killed: bool) -> None:
    with backends.backend(url) as store:
        flow = store.get_connection().get_flow_details(uuid)
        (workflow,) = (atom for atom in flow if atom.meta_value(models.WORKFLOW) is not None)
        assert flow.state == states.SUCCESS, flow.state
        assert workflow.results == LIMIT
        steps = [atom.name for atom in flow if atom.is_step]
        assert len(steps) == 2, steps
        assert all(f"/{workflow.attempt}." in name for name in steps), steps
        assert workflow.meta[models.CONTINUED]["number"] == LIMIT - 1
        done = Counter(log.read_text(encoding="utf-8").split())
        assert set(done) == {str(number) for number in range(LIMIT)}, done
        assert done.total() <= LIMIT + was_killed, done


def main(url: str, folder: Path) -> None:
    for kill_at in itertools.count(1):
        log, uuid_file = folder / f"effects-{kill_at}", folder / f"uuid-{kill_at}"
        assert in_child(submit, url, log, uuid_file) == 0
        uuid = uuid_file.read_text(encoding="utf-8")
        code = in_child(run, url, uuid, kill_at)
        assert code in (0, KILLED), code
        was_killed = code == KILLED
        if was_killed:
            assert in_child(run, url, uuid, 0) == 0
        assert in_child(check, url, uuid, log, was_killed) == 0
        if not was_killed:
            print(kill_at - 1)
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
