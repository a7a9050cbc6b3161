"""What the progress listener shows, and what it costs."""

from __future__ import annotations

import io
import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from wbengine import engines, retry, states, task
from wbengine.listeners import _tally, progress
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.runtime import compiler
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


class Shown:
    """A tally that is told by hand, and its picture."""

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

    def rows(self, rows: int = 20) -> list[str]:
        """The tree, without its headline."""
        before = len(self.bytes.getvalue())
        self.console.print(self.picture.tree(rows))
        text = self.bytes.getvalue()[before:].decode(self.encoding)
        return [line.rstrip() for line in text.splitlines()[1:]]


def failure(text: str = "boom") -> ft.Failure:
    return ft.Failure.from_exception(ValueError(text))


# The tree ---------------------------------------------------------------------------------------


def test_a_small_flow_is_shown_whole_and_finished_flows_are_folded():
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


def test_every_state_can_be_told_from_the_others():
    names = ["w", "r", "d", "i", "f", "ing", "ed", "stuck"]
    shown = Shown(flow("f", *names))
    told = [states.PENDING, states.RUNNING, states.SUCCESS, states.IGNORE, states.FAILURE,
            states.REVERTING, states.REVERTED, states.REVERT_FAILURE]  # fmt: skip
    for name, state in zip(names, told, strict=True):
        shown.tell(state, name, result=failure("no\nmore"))
    assert shown.rows() == [
        "├── ○ w",
        "├── ▶ r  0 s",
        "├── ✔ d",
        "├── ⊘ i  left out",
        "├── ✘ f  failure  ValueError: no",
        "├── ↩ ing  reverting  0 s",
        "├── ↶ ed  reverted",
        "└── ‼ stuck  revert failure  ValueError: no",
    ]
    assert shown.tally.counts(0) == dict.fromkeys(told, 1)


def test_what_failed_is_remembered_while_it_is_reverted_and_forgotten_when_it_runs_again():
    shown = Shown(flow("f", "a"))
    for state in (states.FAILURE, states.REVERTING, states.REVERTED):
        shown.tell(state, "a", result=failure())
    assert shown.rows() == ["└── ↶ a  reverted  ValueError: boom"]
    shown.tell(states.RUNNING, "a")
    assert shown.rows() == ["└── ▶ a  0 s"]


def test_progress_is_a_bar():
    shown = Shown(flow("f", "a", "b"))
    shown.tell(states.RUNNING, "a", "b")
    records: list[Any] = [None] * len(shown.tally.plan)
    for node in shown.tally.plan.atoms():
        records[node] = SimpleNamespace(progress=None)
    records[shown.tally.plan.by_name["b"]].progress = 0.25
    shown.tally.records = records
    rows = shown.rows()
    assert rows[0] == "├── ▶ a  0 s"
    assert rows[1].startswith("└── ▶ b  0 s  ━━━━━") and rows[1].endswith("25%")
    assert shown.picture.line() == "f: 0 of 2 tasks done, 2 running (b 25%, a)"
    shown.tell(states.SUCCESS, "b")
    assert shown.rows()[1] == "└── ✔ b"


def test_retries_say_which_attempt_it_is_and_when_it_begins():
    shown = Shown(flow("f", "a", retry=retry.Times(3, name="again")))
    node = shown.tally.plan.by_name["again"]
    record = SimpleNamespace(results=[(1, {}), (2, {})], has_meta=True, progress=None,
                             meta={"retry_at": time.time() + 1000})  # fmt: skip
    shown.tally.records = [record] * len(shown.tally.plan)
    assert shown.tally.is_retry(node)
    shown.tell(states.RETRYING, "again")
    row = shown.rows()[0]
    assert re.fullmatch("├── ↻ again  retrying  attempt 2  again in (9..|1000) s", row)
    shown.tell(states.SUCCESS, "again")
    assert shown.rows() == ["├── ✔ again  attempt 2", "└── ○ a"]
    assert shown.picture.line() == "f: 0 of 1 task done, 1 retry"


def test_of_a_large_flow_what_runs_and_what_failed_is_shown():
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
def test_a_picture_is_never_much_longer_than_asked_for(rows):
    flows = [flow(f"f{n}", many(f"{n}.", 30)) for n in range(50)]
    shown = Shown(flow("f", *flows))
    for number in range(50):
        shown.tell(states.RUNNING, *(f"{number}.{n}" for n in range(30)))
    assert len(shown.rows(rows)) <= 2 * rows + 8
    shown.tell(states.FAILURE, "40.7", result=failure())
    assert any("40.7" in row for row in shown.rows(rows))


def test_deep_flows_are_shortened():
    innermost = flow("innermost", "a", "b")
    root: Any = innermost
    for number in range(10_000):
        root = flow(f"level{number}", root)
    shown = Shown(root)
    shown.tell(states.RUNNING, "a")
    rows = [
        "└── ▶ level9998  0/2",
        "    └── ▶ level9997  0/2",
        "        └── ... 9,995 flows around",
        "            └── ▶ level1  0/2",
        "                └── ▶ level0  0/2",
        "                    └── ▶ innermost  0/2",
        "                        ├── ▶ a  0 s",
        "                        └── ○ b",
    ]
    assert shown.rows() == rows
    shown.tell(states.RUNNING, "b")
    assert shown.rows() == [*rows[:-1], "                        └── ▶ b  0 s"]


def test_a_task_may_be_all_there_is():
    shown = Shown(nothing("alone"))
    shown.tell(states.RUNNING, "alone")
    assert shown.rows() == ["└── ▶ alone  0 s"]
    assert shown.picture.line() == "alone: 0 of 1 task done, 1 running (alone)"


def test_consoles_that_know_ascii_only():
    shown = Shown(flow("fü", "ä\x1b[31m", "[b]"), encoding="ascii")
    shown.tell(states.SUCCESS, "[b]")
    assert shown.rows() == ["+-- . ?\\x1b[31m", "`-- + [b]"]
    assert shown.picture.line() == "f?: 1 of 2 tasks done"


# Lines ------------------------------------------------------------------------------------------


def test_news_are_said_once_and_not_without_end():
    shown = Shown(flow("f", *map(str, range(100)), retry=retry.Times(2, name="again")))
    shown.tell(states.FAILURE, *map(str, range(50)), result=failure())
    shown.tell(states.RETRYING, "again")
    lines = list(shown.picture.news())
    assert lines[0] == "f: task '0' failed: ValueError: boom"
    assert lines[-1] == "f: 31 more failures and retries" and len(lines) == 21
    assert list(shown.picture.news()) == []
    shown.tell(states.RETRYING, "again")
    shown.tell(states.REVERT_FAILURE, "1", result=failure())
    assert list(shown.picture.news()) == [
        "f: retry 'again': its flow runs again",
        "f: task '1' could not be reverted: ValueError: boom",
    ]


def test_an_event_costs_the_same_in_any_flow():
    """Nothing is walked, copied or drawn when something happens."""
    shown = Shown(flow("f", *(flow(f"g{n}", f"a{n}") for n in range(2000))))
    before = bytes(shown.tally.marks)
    shown.tell(states.RUNNING, "a1000")
    after = bytes(shown.tally.marks)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert len(shown.tally.since) == 1


# The listener -----------------------------------------------------------------------------------


class Tells(task.Task):
    """Tells how far it is, and waits until somebody looked."""

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
    """A file that lets somebody know when a text was written."""

    def __init__(self, text: str, found: threading.Event) -> None:
        super().__init__()
        self.text, self.found = text, found

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.text in self.getvalue():
            self.found.set()
        return written


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_lines_where_there_is_no_terminal(engine):
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


def test_the_same_line_is_not_said_twice():
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


def test_a_live_tree_and_what_became_of_it():
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


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_terminals_that_should_not_be_painted(monkeypatch, name):
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


def test_a_second_run_goes_on_where_the_first_one_stopped():
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


def test_an_engine_may_be_compiled_while_it_listens():
    from wbengine.engines import local
    from wbengine.persistence import models

    file = io.StringIO()
    engine = local.SerialActionEngine(flow("order", "a"), models.FlowDetail("order"), None, {})
    with progress.ProgressListener(engine, Console(file=file), interval=None) as listener:
        listener.refresh()
        engine.run()
    assert file.getvalue().startswith("order: SUCCESS, 1 of 1 task done")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left")


def test_what_cannot_be_shown_hurts_nobody(caplog):
    loaded = engines.load(flow("order", "a", "b"))
    with progress.ProgressListener(loaded, Console(file=Broken()), interval=None) as listener:
        listener.refresh()
        listener.refresh()
        loaded.run()
    assert loaded.storage.get_flow_state() == "SUCCESS"
    assert caplog.text.count("cannot be shown") == 1


@pytest.mark.parametrize("option", ["refresh_per_second", "interval", "max_rows"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_numbers_must_make_sense(option, value):
    with pytest.raises(ValueError, match=option):
        progress.ProgressListener(engines.load(flow("f", "a")), **{option: value})
