"""Output and cost of the progress listener."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines, retry, states, task
from wbengine._runtime import compiler
from wbengine.listeners import _tally, progress
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.types import failure as ft


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def nothing(name: str) -> task.Task:
    return task.FunctorTask(lambda: None, name=name)


def flow(name: str, *members: Any, **options: Any) -> linear_flow.Flow:
    nodes = (nothing(member) if isinstance(member, str) else member for member in members)
    return linear_flow.Flow(name, **options).add(*nodes)


def many(name: str, count: int) -> unordered_flow.Flow:
    return unordered_flow.Flow(name).add(*(nothing(f"{name}{n}") for n in range(count)))


class Held(task.Task):
    """Task that runs until a file exists."""

    def execute(self, begun: str, end: str) -> None:
        Path(begun).touch()
        deadline = time.monotonic() + 60
        while not Path(end).exists() and time.monotonic() < deadline:
            time.sleep(0.01)


class Shown:
    """A tally whose events are sent by the test, and its output."""

    def __init__(self, root: Any, encoding: str = "utf-8") -> None:
        self.clock = Clock()
        self.tally = _tally.Tally(compiler.compile(root), self.clock)
        self.bytes = io.BytesIO()
        file = io.TextIOWrapper(self.bytes, encoding=encoding, write_through=True)
        self.console = Console(file=file, width=120)
        self.picture = progress.Picture(self.tally, self.console)
        self.encoding = encoding

    def tell(self, state: str, *names: str, result: Any = None) -> None:
        for name in names:
            self.tally.atom(name, state, result)

    def keep(self, *records: Any) -> None:
        """Give the tally the records of these atoms."""
        self.tally.records = [None] * len(self.tally.plan)
        for record in records:
            self.tally.records[self.tally.plan.by_name[record.name]] = record

    def rows(self, rows: int = 20) -> list[str]:
        """Return the lines of the tree without its headline."""
        before = len(self.bytes.getvalue())
        self.console.print(self.picture.tree(rows))
        text = self.bytes.getvalue()[before:].decode(self.encoding)
        return [line.rstrip() for line in text.splitlines()[1:]]


def tree_of(listener: progress.ProgressListener) -> list[str]:
    """Return the lines of the tree of a listener."""
    assert listener._picture is not None
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(listener._picture.tree(20))
    return capture.get().splitlines()


def failure(text: str = "boom") -> ft.Failure:
    return ft.Failure.from_exception(ValueError(text))


# Tree ---------------------------------------------------------------------------------------------


def test_small_flow_is_shown_in_full_with_finished_flows_collapsed():
    shown = Shown(flow("f", flow("first", "a", "b"), flow("second", "c", "d"), "e"))
    assert shown.rows() == ["├── ○ first  0/2", "├── ○ second  0/2", "└── ○ e"]
    shown.tell(states.SUCCESS, "a", "b")
    shown.tell(states.RUNNING, "c")
    shown.clock.now = 1.5
    assert shown.rows() == [
        "├── ✔ first  2/2",
        "├── ▶ second  0/2",
        "│   ├── ▶ c  1.5 s",
        "│   └── ○ d",
        "└── ○ e",
    ]


def test_each_task_state_has_its_own_symbol():
    names = ["w", "r", "d", "i", "f", "ing", "ed", "stuck"]
    shown = Shown(flow("f", *names))
    each_state = [states.PENDING, states.RUNNING, states.SUCCESS, states.IGNORE, states.FAILURE,
            states.REVERTING, states.REVERTED, states.REVERT_FAILURE]  # fmt: skip
    for name, state in zip(names, each_state, strict=True):
        shown.tell(state, name, result=failure("no\nmore"))
    assert shown.rows() == [
        "├── ○ w",
        "├── ▶ r  0 s",
        "├── ✔ d",
        "├── ⊘ i  ignored",
        "├── ✘ f  failure  ValueError: no",
        "├── ↩ ing  reverting  0 s",
        "├── ↶ ed  reverted",
        "└── ‼ stuck  revert failure  ValueError: no",
    ]
    assert shown.tally.counts(0) == dict.fromkeys(each_state, 1)


def test_error_is_shown_until_the_task_runs_again():
    shown = Shown(flow("f", "a"))
    for state in (states.FAILURE, states.REVERTING, states.REVERTED):
        shown.tell(state, "a", result=failure())
    assert shown.rows() == ["└── ↶ a  reverted  ValueError: boom"]
    shown.tell(states.RUNNING, "a")
    assert shown.rows() == ["└── ▶ a  0 s"]


def test_task_progress_is_shown_as_bar():
    shown = Shown(flow("f", "a", "b"))
    shown.tell(states.RUNNING, "a", "b")
    record = models.TaskDetail("b")
    record.progress = 0.25
    shown.keep(models.TaskDetail("a"), record)
    rows = shown.rows()
    assert rows[0] == "├── ▶ a  0 s"
    assert rows[1].startswith("└── ▶ b  0 s  ━━━━━") and rows[1].endswith("25%")
    assert shown.picture.line() == "f: 0 of 2 tasks done, 2 running (b 25%, a)"
    shown.tell(states.SUCCESS, "b")
    assert shown.rows()[1] == "└── ✔ b"


@pytest.mark.parametrize("pool", ["threads", "processes", "futures"])
@pytest.mark.parametrize("stored", [False, True])
def test_tasks_that_wait_for_a_slot_are_shown_as_queued(
    pool: str, stored: bool, tmp_path: Path
) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    named = [Held(f"t{n}", inject={"begun": str(begun), "end": str(end)}) for n in range(3)]
    options: dict[str, Any] = {"executor": pool, "max_workers": 1}
    with contextlib.ExitStack() as until_end:
        if pool == "futures":
            executor = until_end.enter_context(futures.ThreadPoolExecutor(1))
            options = {"executor": executor}
        if stored:
            options["backend"] = f"dir://{tmp_path}/flows"
        root = unordered_flow.Flow("f").add(linear_flow.Flow("inner").add(named[0]), *named[1:])
        engine = engines.load(root, engine="parallel", **options)
        file = io.StringIO()
        listener = progress.ProgressListener(engine, Console(file=file, width=200), interval=None)
        until_end.enter_context(listener)
        with Running(engine):
            until(begun.exists)
            picture = listener._picture
            assert picture is not None
            line = re.compile(r"f: 0 of 3 tasks done, 1 running, 2 queued \(t\d\)")
            until(lambda: line.fullmatch(picture.line()))
            _, *rows = tree_of(listener)
            end.touch()
    tasks = [row.split("─ ")[1].rstrip() for row in rows if " t" in row]
    queued = [row for row in tasks if re.fullmatch(r"◷ t\d  queued", row)]
    running = [row for row in tasks if re.fullmatch(r"▶ t\d  .* m?s", row)]
    assert (len(queued), len(running)) == (2, 1), rows
    assert "f: SUCCESS, 3 of 3 tasks done" in file.getvalue()


def test_task_that_waits_for_a_signal_is_shown_as_waiting_for_it() -> None:
    file = io.StringIO()
    engine = engines.load(flow("f", task.WaitFor("approved", timeout=600)))
    listener = progress.ProgressListener(engine, Console(file=file, width=200), interval=0.01)
    with listener, Running(engine):
        line = "f: WAITING, 0 of 1 task done, 1 waiting (wait-for-approved)"
        until(lambda: line in file.getvalue())
        headline, row = tree_of(listener)
        engine.signal("approved")
    assert headline.startswith("f  WAITING  0 of 1 task done, 1 waiting")
    assert row.startswith("└── ⚐ wait-for-approved  waiting  for signal 'approved' since ")
    assert "f: SUCCESS, 1 of 1 task done" in file.getvalue()


def test_retry_row_shows_attempt_and_start_of_next_attempt():
    shown = Shown(flow("f", "a", retry=retry.Times(3, name="again")))
    record = models.RetryDetail("again")
    record.results = [(1, {}), (2, {})]
    record.meta = {"retry_at": time.time() + 1000}
    shown.keep(record)
    assert shown.tally.is_retry(shown.tally.plan.by_name["again"])
    shown.tell(states.RETRYING, "again")
    row = shown.rows()[0]
    assert re.fullmatch("├── ↻ again  retrying  attempt 2  again in (9..|1000) s", row)
    shown.tell(states.SUCCESS, "again")
    assert shown.rows() == ["├── ✔ again  attempt 2", "└── ○ a"]
    assert shown.picture.line() == "f: 0 of 1 task done, 1 retry"


def test_task_with_retries_is_one_row_with_attempt_number():
    ship = nothing("ship")
    ship.retries = 3
    shown = Shown(flow("f", "a", flow("inner", ship)))
    record = models.RetryDetail("ship_retry")
    record.results = [(1, {})]
    shown.keep(record, models.TaskDetail("ship"))
    shown.tell(states.SUCCESS, "a", "ship_retry")
    shown.tell(states.RUNNING, "ship")
    inner = ["├── ✔ a", "└── ▶ inner  0/1"]
    assert shown.rows() == [*inner, "    └── ▶ ship  0 s"]
    assert shown.picture.line() == "f: 1 of 2 tasks done, 1 running (ship)"
    shown.tell(states.FAILURE, "ship", result=failure())
    shown.tell(states.RETRYING, "ship_retry")
    shown.tell(states.REVERTING, "ship")
    shown.tell(states.REVERTED, "ship")
    record.results.append((2, {}))
    record.meta = {"retry_at": time.time() + 1000}
    assert shown.tally.counts(0) == {"SUCCESS": 1, "RETRYING": 1}
    row = shown.rows()[-1]
    assert re.fullmatch("    └── ↻ ship  retrying  attempt 2  ValueError: boom  again in .* s", row)
    assert shown.picture.line() == "f: 1 of 2 tasks done, 1 retrying, 1 retry"
    assert list(shown.picture.events()) == [
        "f: task 'ship' failed: ValueError: boom", "f: task 'ship' runs again",
    ]  # fmt: skip
    shown.tell(states.RUNNING, "ship_retry")
    shown.tell(states.SUCCESS, "ship_retry")
    shown.tell(states.RUNNING, "ship")
    assert shown.rows()[-1] == "    └── ▶ ship  attempt 2  0 s"
    shown.tell(states.SUCCESS, "ship")
    assert shown.rows() == ["├── ✔ a", "└── ✔ inner  1/1"]
    assert shown.picture.summary().startswith("f: PENDING, 2 of 2 tasks done, 1 retry")


@pytest.mark.parametrize("retries", [0, 1], ids=["without-retries", "with-retries"])
def test_single_task_is_shown_under_its_own_name(retries):
    alone = nothing("alone")
    alone.retries = retries
    shown = Shown(alone)
    shown.tell(states.RUNNING, *(["alone_retry"] if retries else []), "alone")
    assert shown.rows() == ["└── ▶ alone  0 s"]
    assert shown.picture.line() == "alone: 0 of 1 task done, 1 running (alone)"


def test_large_flow_shows_running_and_failed_tasks():
    shown = Shown(flow("f", many("m", 5000), many("n", 5000), "last"))
    shown.tell(states.SUCCESS, *(f"m{n}" for n in range(4000)))
    shown.tell(states.RUNNING, "m4100", "m4200")
    shown.tell(states.FAILURE, "m4321", result=failure())
    assert shown.rows() == [
        "├── ✘ m  4,000/5,000",
        *(f"│   ├── ✔ m{n}" for n in range(13)),
        "│   ├── ▶ m4100  0 s",
        "│   ├── ▶ m4200  0 s",
        "│   ├── ✘ m4321  failure  ValueError: boom",
        "│   └── ... 4,984 more tasks: 997 pending, 3,987 success",
        "├── ○ n  0/5,000",
        "└── ○ last",
    ]


@pytest.mark.parametrize("rows", [1, 5, 20, 40])
def test_progress_tree_respects_maximum_number_of_rows(rows):
    flows = [flow(f"f{n}", many(f"{n}.", 30)) for n in range(50)]
    shown = Shown(flow("f", *flows))
    for number in range(50):
        shown.tell(states.RUNNING, *(f"{number}.{n}" for n in range(30)))
    assert len(shown.rows(rows)) <= 2 * rows + 8
    shown.tell(states.FAILURE, "40.7", result=failure())
    assert any("40.7" in row for row in shown.rows(rows))


def test_deep_flow_omits_middle_levels():
    innermost = flow("innermost", "a", "b")
    root: Any = innermost
    for number in range(10_000):
        root = flow(f"level{number}", root)
    shown = Shown(root)
    shown.tell(states.RUNNING, "a")
    rows = [
        "└── ▶ level9998  0/2",
        "    └── ▶ level9997  0/2",
        "        └── ... 9,995 enclosing flows",
        "            └── ▶ level1  0/2",
        "                └── ▶ level0  0/2",
        "                    └── ▶ innermost  0/2",
        "                        ├── ▶ a  0 s",
        "                        └── ○ b",
    ]
    assert shown.rows() == rows
    shown.tell(states.RUNNING, "b")
    assert shown.rows() == [*rows[:-1], "                        └── ▶ b  0 s"]


def test_ascii_console_uses_ascii_symbols():
    shown = Shown(flow("fü", "ä\x1b[31m", "[b]"), encoding="ascii")
    shown.tell(states.SUCCESS, "[b]")
    assert shown.rows() == ["+-- . ?\\x1b[31m", "`-- + [b]"]
    assert shown.picture.line() == "f?: 1 of 2 tasks done"


# Lines ------------------------------------------------------------------------------------------


def test_event_lines_are_written_once_and_limited_in_number():
    shown = Shown(flow("f", *map(str, range(100)), retry=retry.Times(2, name="again")))
    shown.tell(states.FAILURE, *map(str, range(50)), result=failure())
    shown.tell(states.RETRYING, "again")
    lines = list(shown.picture.events())
    assert lines[0] == "f: task '0' failed: ValueError: boom"
    assert lines[-1] == "f: 31 more failures and retries" and len(lines) == 21
    assert list(shown.picture.events()) == []
    shown.tell(states.RETRYING, "again")
    shown.tell(states.REVERT_FAILURE, "1", result=failure())
    assert list(shown.picture.events()) == [
        "f: retry 'again': its flow runs again",
        "f: task '1' could not be reverted: ValueError: boom",
    ]


def test_event_changes_one_mark_regardless_of_flow_size():
    """An event does not walk, copy or draw the flow."""
    shown = Shown(flow("f", *(flow(f"g{n}", f"a{n}") for n in range(2000))))
    before = bytes(shown.tally.marks)
    shown.tell(states.RUNNING, "a1000")
    after = bytes(shown.tally.marks)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert len(shown.tally.since) == 1


# Listener -----------------------------------------------------------------------------------------


class Tells(task.Task):
    """Task that reports progress, and waits until the output shows it."""

    def __init__(self, name: str, looked: threading.Event | None = None) -> None:
        super().__init__(name)
        self.looked = looked

    def execute(self) -> None:
        self.update_progress(0.5)
        if self.looked is not None:
            assert self.looked.wait(30)


class Fails(task.Task):
    def execute(self) -> None:
        raise ValueError("card refused\nand so on")


class Watched(io.StringIO):
    """File that sets an event when it contains a text."""

    def __init__(self, text: str, found: threading.Event) -> None:
        super().__init__()
        self.text, self.found = text, found

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.text in self.getvalue():
            self.found.set()
        return written


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_without_terminal_progress_is_written_as_lines(engine):
    looked = threading.Event()
    file = Watched("(slow 50%)", looked)
    loaded = engines.load(flow("order", "a", Tells("slow", looked), "b"), engine=engine)
    with progress.ProgressListener(loaded, Console(file=file), interval=0.02):
        loaded.run()
    lines = file.getvalue().splitlines()
    assert "order: 1 of 3 tasks done, 1 running (slow 50%), " in file.getvalue()
    assert lines[-1].startswith("order: SUCCESS, 3 of 3 tasks done, ")
    assert "\x1b" not in file.getvalue()
    assert not [one for one in threading.enumerate() if one.name == "wbengine-progress"]


def test_unchanged_progress_line_is_not_repeated():
    file = io.StringIO()
    loaded = engines.load(flow("order", "a"))
    with progress.ProgressListener(loaded, Console(file=file), interval=None) as listener:
        listener.refresh()
        listener.refresh()
        loaded.run()
        listener.refresh()
        listener.refresh()
    assert [line.rpartition(",")[0] for line in file.getvalue().splitlines()] == [
        "order: 0 of 1 task done", "order: 1 of 1 task done", "order: SUCCESS, 1 of 1 task done",
    ]  # fmt: skip


def test_terminal_shows_live_tree_and_final_state():
    looked = threading.Event()
    file = Watched("50%", looked)
    console = Console(file=file, force_terminal=True, width=80, color_system="truecolor")
    loaded = engines.load(flow("order", "a", Tells("slow", looked), Fails("pay")))
    with (
        pytest.raises(ValueError, match="card refused"),
        progress.ProgressListener(loaded, console, refresh_per_second=50),
    ):
        loaded.run()
    assert "\x1b[2K" in file.getvalue()
    end = Console(file=io.StringIO(), width=80)
    end.print("")
    final = file.getvalue().splitlines()[-5:]
    assert "0 of 3 tasks done, 3 reverted" in final[0]
    assert "ValueError: card refused" in final[3]
    assert final[4].startswith("order: REVERTED, 0 of 3 tasks done, 3 reverted")


@pytest.mark.parametrize(
    "retry_of_inner_flow", [None, retry.Times(2)], ids=["task-with-retries", "flow-with-retry"]
)
def test_live_tree_of_running_nested_flow_is_drawn(retry_of_inner_flow, caplog):
    """A task with retries runs as a flow with a retry controller."""
    drawn = threading.Event()
    file = Watched("50%", drawn)
    console = Console(file=file, force_terminal=True, width=80)
    slow = Tells("slow", drawn)
    if retry_of_inner_flow is None:
        slow.retries = 2
    inner = flow("packing", slow, retry=retry_of_inner_flow)
    loaded = engines.load(flow("order", inner, "b"))
    with progress.ProgressListener(loaded, console, refresh_per_second=50):
        loaded.run()
    assert not caplog.records
    assert file.getvalue().splitlines()[-1].startswith("order: SUCCESS, 2 of 2 tasks done")


def test_live_tree_is_drawn_before_the_flow_begins():
    """Otherwise, a log line could come between the first drawing and its position."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    loaded = engines.load(flow("order", "pack"))
    with progress.ProgressListener(loaded, console, refresh_per_second=0.01):
        assert "pack" in file.getvalue()


def test_other_threads_can_print_while_drawing_error_is_logged(monkeypatch):
    """Otherwise, a thread with the lock of the handler and a drawing would wait for each other."""
    printed: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.getMessage() == "cannot show the progress any longer"
            other = threading.Thread(target=print, args=("a line",), kwargs={"file": sys.stderr})
            other.start()
            other.join(10)
            printed.append(not other.is_alive())

    def mask(text: str) -> str:
        if threading.current_thread() is threading.main_thread():
            return text
        drawn.set()
        raise OSError("no space left")

    drawn = threading.Event()
    monkeypatch.setattr(logging.getLogger(), "handlers", [Handler()])
    console = Console(stderr=True, force_terminal=True, width=80)
    loaded = engines.load(flow("order", Tells("pack", drawn), "ship"))
    with progress.ProgressListener(loaded, console, live=True, mask=mask):
        loaded.run()
    assert printed == [True]


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_dumb_or_colorless_terminal_gets_plain_lines(monkeypatch, name):
    for each in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, "dumb")
    file = io.StringIO()
    loaded = engines.load(flow("order", "a", Fails("pay")))
    with (
        pytest.raises(ValueError, match="card refused"),
        progress.ProgressListener(loaded, Console(file=file, force_terminal=True)),
    ):
        loaded.run()
    lines = file.getvalue().splitlines()
    assert lines[0] == "order: task 'pay' failed: ValueError: card refused"
    assert lines[1].startswith("order: REVERTED, 0 of 2 tasks done, 2 reverted, ")
    assert "\x1b" not in file.getvalue()


def test_resumed_run_shows_progress_of_first_run():
    file = io.StringIO()
    loaded = engines.load(flow("order", "a", "b"))
    loaded.atom_notifier.register(
        "SUCCESS", lambda state, details: details["task_name"] == "a" and loaded.suspend()
    )
    loaded.run()
    with progress.ProgressListener(loaded, Console(file=file), interval=None) as listener:
        listener.refresh()
        loaded.run()
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("order: 1 of 2 tasks done, ")
    assert lines[-1].startswith("order: SUCCESS, 2 of 2 tasks done, ")


def test_engine_can_be_compiled_after_listener_is_registered():
    from wbengine.engines import _local

    file = io.StringIO()
    engine = _local.SerialActionEngine(flow("order", "a"), models.FlowDetail("order"), None, {})
    with progress.ProgressListener(engine, Console(file=file), interval=None) as listener:
        listener.refresh()
        engine.run()
    assert file.getvalue().startswith("order: SUCCESS, 1 of 1 task done")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left")


def test_output_error_is_logged_once_and_does_not_affect_run(caplog):
    loaded = engines.load(flow("order", "a", "b"))
    with progress.ProgressListener(loaded, Console(file=Broken()), interval=None) as listener:
        listener.refresh()
        listener.refresh()
        loaded.run()
    assert loaded.storage.get_flow_state() == "SUCCESS"
    assert caplog.text.count("cannot show the progress") == 1


@pytest.mark.parametrize("option", ["refresh_per_second", "interval", "max_rows"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_options_reject_zero_negative_and_nan(option, value):
    with pytest.raises(ValueError, match=option):
        progress.ProgressListener(engines.load(flow("f", "a")), **{option: value})
