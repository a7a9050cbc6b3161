"""Listeners on every kind of engine."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.integration.engine_kinds import engine_options
from tests.support import sample_tasks as tasks
from tests.support.reading import read_flow
from wbengine import engines, retry, task
from wbengine.listeners import base, capturing, printing, progress, timing
from wbengine.listeners import logging as logging_listeners
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends


@pytest.fixture(params=["serial", "threads", "processes", "memory"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return `engines.load` for one kind of engine."""
    with engine_options(request.param, tmp_path, tasks, slots=2) as options:
        yield functools.partial(engines.load, **options)


class Once(retry.Retry):
    """Retry controller that retries its flow once."""

    def execute(self, history: retry.History) -> int:
        return len(history) + 1

    def on_failure(self, history: retry.History) -> str:
        return retry.RETRY if len(history) < 2 else retry.REVERT_ALL


def failing() -> linear_flow.Flow:
    inner = linear_flow.Flow("inner", retry=Once("once")).add(tasks.Fail("fail"))
    return linear_flow.Flow("f").add(tasks.Add("add"), tasks.Double("double"), inner)


def run(engine: Any) -> None:
    with pytest.raises(ValueError, match="this went wrong"):
        engine.run()


WAVE = [("retry", "once", "RETRYING"), ("task", "fail", "PENDING"), ("retry", "once", "RUNNING")]
FAILS = [("task", "fail", "RUNNING"), ("task", "fail", "FAILURE"), ("task", "fail", "REVERTING"),
         ("task", "fail", "REVERTED")]  # fmt: skip


def test_every_engine_kind_reports_the_same_state_changes(load):
    engine = load(failing(), store={"x": 1, "y": 2})
    with capturing.CaptureListener(engine) as listener:
        run(engine)
    told = [
        (kind, details[f"{kind}_name"], state)
        for kind, state, details in listener.values
        if kind != "flow"
    ]
    begun = [("retry", "once", "RUNNING"), ("retry", "once", "SUCCESS")]
    done = [("task", name, state) for name in ("add", "double") for state in ("RUNNING", "SUCCESS")]
    undone = [
        (kind, name, state)
        for kind, name in (("retry", "once"), ("task", "double"), ("task", "add"))
        for state in ("REVERTING", "REVERTED")
    ]
    assert told == [*done, *begun, *FAILS, *WAVE, begun[1], *FAILS, *undone]
    flow = [state for kind, state, _ in listener.values if kind == "flow"]
    assert flow == ["RUNNING", "REVERTED"]
    for kind, state, details in listener.values:
        assert details["old_state"] and details[f"{kind}_uuid"], state


def test_durations_and_timestamps_are_stored(load):
    backend = backends.fetch("memory")
    engine = load(
        linear_flow.Flow("f").add(tasks.Add("add"), tasks.Double("double")),
        store={"x": 1, "y": 2},
        backend=backend,
    )
    with timing.DurationListener(engine), timing.EventTimeListener(engine):
        engine.run()
    kept = read_flow(backend, engine.storage.flow_uuid)
    metas = {atom.name: atom.meta for atom in kept if atom.name in ("add", "double")}
    assert sorted(metas) == ["add", "double"]
    for meta in (kept.meta, *metas.values()):
        assert set(meta) >= {"duration", "RUNNING-timestamp", "SUCCESS-timestamp"}
        assert 0 <= meta["duration"] < 30
    attempt = engine.storage.get_attempt("double")
    assert metas["double"]["duration"] == attempt.ended - attempt.started


def test_logged_failure_contains_traceback_and_predecessors(load, caplog):
    caplog.set_level(logging.DEBUG, "wbengine.listeners.logging")
    engine = load(failing(), store={"x": 41, "y": 2})
    with logging_listeners.DynamicLoggingListener(engine, mask_inputs_keys=["x"]):
        run(engine)
    ours = [r for r in caplog.records if r.name == "wbengine.listeners.logging"]
    failed = [r for r in ours if "into state 'FAILURE'" in r.getMessage()]
    assert len(failed) == 2 and {r.levelno for r in failed} == {logging.WARNING}
    formatter = logging.Formatter()
    for record in failed:
        text = formatter.format(record)
        assert "this went wrong" in text and "# the line that raised" in text
        assert "5 predecessors (most recent first):" in text
        assert "  Atom 'once'" in text and "Flow 'inner'" in text
        assert "'requires': {'x': '***', 'y': 2}, 'provides': 43" in text
    levels = {r.getMessage().rpartition(" from ")[0]: r.levelno for r in ours}
    warned = [words for words, level in levels.items() if level == logging.WARNING]
    assert sum("RETRYING" in words for words in warned) == 1
    assert sum("REVERTED" in words for words in warned) == 5


def test_listener_that_raises_does_not_affect_the_flow(load, caplog):
    class Bad(base.Listener):
        def _task_receiver(self, state: str, details: Any) -> None:
            raise RuntimeError("bad listener")

        _flow_receiver = _retry_receiver = _task_receiver

    engine = load(linear_flow.Flow("f").add(tasks.Add("add")), store={"x": 1, "y": 2})
    with Bad(engine), capturing.CaptureListener(engine) as other:
        engine.run()
    assert engine.storage.fetch("sum") == 3
    assert [state for _, state, _ in other.values] == ["RUNNING", "RUNNING", "SUCCESS", "SUCCESS"]
    assert caplog.text.count("bad listener") >= 4


def test_progress_listener_prints_failure_and_summary(load):
    file = io.StringIO()
    inner = unordered_flow.Flow("inner").add(*(tasks.Progressing(f"p{n}") for n in range(5)))
    engine = load(linear_flow.Flow("f").add(inner, tasks.Fail("fail")))
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    with progress.ProgressListener(engine, console, live=False, interval=0.01):
        run(engine)
    lines = file.getvalue().splitlines()
    assert "f: task 'fail' failed: ValueError: this went wrong" in lines
    assert lines[-1].startswith("f: REVERTED, 0 of 6 tasks done, 6 reverted, ")
    assert "\x1b" not in file.getvalue()


def _nothing() -> None:
    """Body of 2,500 tasks."""


def test_progress_listener_limits_redraws_in_large_flows():
    """The number of redraws does not depend on the number of tasks."""
    drawn = 0

    class Counting(io.StringIO):
        def write(self, text: str) -> int:
            nonlocal drawn
            drawn += text.count("tasks done")
            return len(text)

    flow = linear_flow.Flow("f").add(
        *(
            unordered_flow.Flow(f"f{n}").add(
                *(task.FunctorTask(_nothing, name=f"{n}.{m}") for m in range(50))
            )
            for n in range(50)
        )
    )
    engine = engines.load(flow)
    console = Console(file=Counting(), force_terminal=True, width=80, height=30)
    with progress.ProgressListener(engine, console, refresh_per_second=4) as listener:
        engine.run()
        tally = listener._get_tally()
        assert tally is not None
        elapsed = tally.duration
    assert tally.counts(0) == {"SUCCESS": 2_500} and not tally.since
    assert elapsed is not None
    # The listener draws four times a second, and at start and end.
    assert drawn <= 4 * elapsed + 8


@pytest.mark.parametrize("order", [1, -1])
def test_two_listeners_are_notified_and_deregistered(order, capsys):
    engine = engines.load(linear_flow.Flow("f").add(tasks.Nothing("n")))
    made = [printing.PrintingListener(engine), timing.PrintingDurationListener(engine)][::order]
    with contextlib.ExitStack() as stack:
        for listener in made:
            stack.enter_context(listener)
        engine.run()
    assert not engine.notifier.topics and not engine.atom_notifier.topics
    said = capsys.readouterr().out
    assert said.count("has moved") == 4 and said.count("started.") == 2
    assert said.count("It took") == 2


def test_state_change_is_notified_before_its_progress(load):
    node = tasks.Progressing("p")
    engine = load(linear_flow.Flow("f").add(node))
    heard: list[Any] = []
    engine.atom_notifier.register("*", lambda state, details: heard.append(state))
    node.notifier.register(
        task.EVENT_UPDATE_PROGRESS, lambda _, details: heard.append(details["progress"])
    )
    engine.run()
    assert heard == ["RUNNING", 0.0, 0.25, 0.5, 0.75, 1.0, "SUCCESS", 1.0]


def test_progress_listener_shows_completed_fraction_of_map():
    shown = threading.Event()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            if "(fan 50%)" in text:
                shown.set()
            return super().write(text)

    class Wait(task.Task):
        def execute(self, number: int) -> None:
            assert number == 0 or shown.wait(30)

    fan = task.Map(Wait(), over="numbers", item="number", name="fan", max_in_flight=1)
    engine = engines.load(
        linear_flow.Flow("f").add(fan), store={"numbers": [0, 1]}, engine="parallel"
    )
    with progress.ProgressListener(engine, Console(file=Watched()), interval=0.01):
        engine.run()
    assert shown.is_set()
