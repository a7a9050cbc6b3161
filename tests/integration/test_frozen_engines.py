"""Engine processes that are frozen until the next engine has completed their flow."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import frozen_engines, python, workers
from tests.support import resuming_tasks as tasks
from tests.support.brokers import broker_url
from wbengine import states

#: Broker, ledger if it is separate, and point of the freeze.
PLACES = [
    ("filesystem", "", "executor.before-open"),
    ("redis", "", "executor.before-open"),
    ("postgresql", "", "executor.before-open"),
    pytest.param("rabbitmq", "sqlite", "executor.before-open", marks=pytest.mark.slow),
    pytest.param("filesystem", "", "executor.after-open", marks=pytest.mark.slow),
]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("broker", "ledger", "point"), PLACES)
def test_engine_that_continues_after_the_next_one_runs_no_task_again(
    broker: str, ledger: str, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The clock of the frozen engine stood still, so it does not see that its lease has expired."""
    url = broker_url(broker, request, tmp_path)
    place = f"{ledger}:///{tmp_path}/ledger.db" if ledger else ""
    words = ["-m", frozen_engines.__name__, "wide", tmp_path, url, place, point]
    with (
        workers.worker_in_thread(url, tasks, **({"ledger": place} if place else {})),
        python.running(words, stdout=python.PIPE, text=True) as frozen,
    ):
        workers.until(lambda: is_stopped(frozen.pid))
        engine = tasks.engine_of("wide", tmp_path, url=url, ledger=place or None, on_busy="wait")
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS
        frozen.send_signal(signal.SIGCONT)
        output, _ = frozen.communicate(timeout=60)
        assert frozen.returncode == frozen_engines.LOST, output
        # Workers have handled the late requests before those of a later flow.
        (tmp_path / "later").mkdir()
        tasks.engine_of("wide", tmp_path / "later", url=url, ledger=place or None).run()
    assert sorted(tasks.runs(tmp_path)) == [f"execute-p{number}" for number in range(6)]
