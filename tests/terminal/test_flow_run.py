"""Screens of `wbengine flow run`."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support.terminals import CTRL_C
from tests.terminal.conftest import Shop, interrupt, matched

UUID = "11111111-0000-4000-8000-000000000001"
SHOW = f"details: wbengine flow show {UUID}"
RESUME = f"to resume: wbengine flow resume {UUID}"


@dataclass(frozen=True)
class Scenario:
    """A flow and its screens.  Rows are patterns that match whole rows."""

    flow: str
    #: The task that waits while the test reads the screen; None: the flow does not wait.
    waits_in: str | None
    during: tuple[str, ...]
    end: tuple[str, ...]
    #: The last row, or the last two if the command is on a row of its own.
    last: str
    code: int = 0
    engine: str = "serial"
    columns: int = 80
    lines: int = 24
    inputs: str = "{}"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.flow}-{self.engine.partition(':')[0]}-{self.columns}x{self.lines}"


_NESTED = {
    "flow": "nested",
    "waits_in": "label",
    "during": (
        r"order  RUNNING  ━+[╸╺]?━*  2 of 4 tasks done, 1 running  .*",
        r"├── ✔ reserve",
        r"├── ▶ packing  1/2",
        r"│   ├── ✔ wrap",
        r"│   └── ▶ label  .*s",
        r"└── ○ send",
    ),
    "end": (
        r"order  SUCCESS  ━+  4 of 4 tasks done  .*",
        r"├── ✔ packing  2/2",
        r"order: SUCCESS, 4 of 4 tasks done, .*",
    ),
    "last": f"SUCCESS; {SHOW}",
}
SCENARIOS = [
    Scenario(**_NESTED),
    Scenario(**_NESTED, columns=120, lines=40),
    Scenario(**_NESTED, engine="parallel"),
    Scenario(
        "fails", None, (),
        (
            r"order  REVERTED  ━+  0 of 3 tasks done, 3 reverted  .*",
            r"├── ↶ reserve  reverted",
            r"└── ↶ print  reverted  ValueError: out of paper",
            r"order: REVERTED, 0 of 3 tasks done, 3 reverted, .*",
            r"failed: print: ValueError: out of paper",
        ),
        f"REVERTED; {SHOW}", 1,
    ),
    Scenario(
        "fails", None, (),
        (
            r"order  FAILURE  ━+[╸╺]?━*  2 of 3 tasks done, 1 failure  .*",
            r"└── ✘ print  failure  ValueError: out of paper",
        ),
        f"FAILURE; {SHOW}", 1, engine="serial://?never_resolve=true", columns=120, lines=40,
    ),
    Scenario(
        "retried", "ship",
        (
            r"order  RUNNING  ━+[╸╺]?━*  1 of 2 tasks done, 1 running, 2 retries  .*",
            r"├── ✔ pack",
            r"└── ▶ ship  attempt 3  .*s",
        ),
        (
            r"order  SUCCESS  ━+  2 of 2 tasks done, 2 retries  .*",
            r"└── ✔ ship  attempt 3",
        ),
        f"SUCCESS; {SHOW}",
    ),
    Scenario(
        "decided", None, (),
        (
            r"order  SUCCESS  ━+  4 of 4 tasks done, 2 ignored  .*",
            r"├── ⊘ refund  ignored.*",
            r"order: SUCCESS, 4 of 4 tasks done, 2 ignored, .*",
        ),
        f"SUCCESS; {SHOW}",
    ),
    Scenario(
        "undone", None, (),
        (
            r"order  REVERTED  ━+  0 of 3 tasks done, 3 reverted  .*",
            r"├── ↶ packing  0/2",
            r"│   ├── ↶ wrap  reverted",
            r"└── ↶ print  reverted  .*",
        ),
        f"REVERTED; {SHOW}", 1,
    ),
    Scenario(
        "exhausted", None, (),
        (
            r"order  REVERTED  ━+  0 of 2 tasks done, 2 reverted, 2 retries  .*",
            r"├── ↶ pack  reverted",
            r"└── ↶ print  reverted  ValueError: out of paper",
            r"order: REVERTED, 0 of 2 tasks done, 2 reverted, 2 retries, .*",
            r"failed: print: ValueError: out of paper",
        ),
        f"REVERTED; {SHOW}", 1,
    ),
    *(
        Scenario(
            "crowded", "pack-0",
            (
                r"order  RUNNING  ━+  0 of 6 tasks done, 2 running,.*",
                *[r"├── ▶ pack-\d  .*s"] * 2,
                *[r"├── ◷ pack-\d  queued"] * 3,
                r"└── ◷ pack-5  queued",
            ),
            (r"order  SUCCESS  ━+  6 of 6 tasks done  .*", r"└── ✔ pack-5"),
            f"SUCCESS; {SHOW}", engine=f"parallel://?max_workers=2&executor={executor}",
            columns=columns,
        )
        for executor, columns in (("threads", 80), ("processes", 120))
    ),
    Scenario(
        "controlled", "pay",
        (
            r"order  RUNNING  ━+[╸╺]?━*  1 of 2 tasks done, 1 running, 2 retries  .*",
            r"└── ▶ outer  1/2",
            r"    ├── ✔ outer again  attempt 2",
            r"    ├── ✔ reserve",
            r"    └── ▶ inner  0/1",
            r"        ├── ✔ inner again",
            r"        └── ▶ pay  .*s",
        ),
        (r"order  SUCCESS  ━+  2 of 2 tasks done, 2 retries  .*", r"└── ✔ outer  2/2"),
        f"SUCCESS; {SHOW}", columns=120, lines=40,
    ),
    Scenario(
        "numbers", "half",
        (
            r"halving  RUNNING  ━+[╸╺]?━*  1 of 2 tasks done, 1 running  .*",
            r"├── ✔ list", r"└── ▶ halves  .*  ━+[╸╺]?━*  67%",
        ),
        (r"halving  SUCCESS  ━+  2 of 2 tasks done  .*", r"└── ✔ halves"),
        f"SUCCESS; {SHOW}", engine="parallel",
        lines=120,
    ),
    Scenario(
        "strict", None, (),
        (
            r"halving  REVERTED  ━+  0 of 1 task done, 1 reverted  .*",
            r"└── ↶ halves  reverted  ValueError: 99 is bad",
        ),
        f"REVERTED; {SHOW}", 1, inputs=json.dumps({"numbers": list(range(150))}).replace(" ", ""),
    ),
    Scenario(
        "progress", "upload",
        (
            r"order  RUNNING  ━+  0 of 2 tasks done, 2 running.*",
            r"├── ▶ upload  .*s  ━+[╸╺]?━*  40%",
            r"└── ▶ scan  .*s",
        ),
        (r"order  SUCCESS  ━+  2 of 2 tasks done  .*", r"├── ✔ upload"),
        f"SUCCESS; {SHOW}", engine="parallel",
    ),
    Scenario(
        "named", "e\u0301cole " * 14,
        (
            r"注文の処理.*…  RUNNING  ━+[╸╺]?━*  1 of 3 tasks done, 1 running  .*",
            r"├── ✔ 予約する.*",
            "├── ▶ e\u0301cole .*",
            r"└── ○ 🚚 send .*",
        ),
        (
            r"注文の処理.*…  SUCCESS  ━+  3 of 3 tasks done  .*",
            r"└── ✔ 🚚 send .*",
        ),
        f"SUCCESS; {SHOW}",
    ),
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_screens_of_run_show_states_and_counts(scenario: Scenario, shop: Shop) -> None:
    command = f"flow run :{scenario.flow} --flow-id {UUID} --engine {scenario.engine}"
    with shop.terminal(
        f"{command} --inputs {scenario.inputs}", columns=scenario.columns, lines=scenario.lines
    ) as run:
        if scenario.waits_in is not None:
            run.wait_for(lambda: matched(scenario.during, run.screen.rows))
            assert len(run.screen.rows) == len(scenario.during)
            shop.go()
        assert run.end() == scenario.code
    rows = run.screen.scrollback
    assert matched(scenario.end, rows), run.scrollback
    assert len([row for row in rows if re.search(r"  [A-Z]+  ━", row)]) == 1, run.scrollback
    assert " ".join(run.scrollback.split()).endswith(scenario.last)


PLAIN = [
    "order: task 'ship' failed: ConnectionError: no answer, attempt 1",
    "order: task 'ship' runs again",
    "order: task 'ship' failed: ConnectionError: no answer, attempt 2",
    "order: task 'ship' runs again",
]


@pytest.mark.parametrize(("name", "columns"), [("NO_COLOR", 80), ("TERM", 120)])
def test_terminal_without_escape_sequences_shows_lines(name: str, columns: int, shop: Shop) -> None:
    with shop.terminal(
        f"flow run :retried --flow-id {UUID}", columns=columns, env={name: "dumb"}
    ) as run:
        run.wait_for(r"order: 1 of 2 tasks done, 1 running, 2 retries \(ship\), ")
        assert run.screen.rows[:4] == PLAIN
        with shop.terminal(f"flow watch {UUID}", columns=columns, env={name: "dumb"}) as watch:
            watch.wait_for("FAILURE  ship  attempt 2  on local  ConnectionError")
            shop.finish(watch)
        assert run.end() == 0
    assert b"\x1b" not in watch.output
    assert matched(
        (".*  SUCCESS  ship  attempt 3  on local", ".*  SUCCESS  flow order"),
        watch.screen.scrollback,
    ), watch.text
    assert watch.screen.rows[-1] == f"SUCCESS; {SHOW}"
    assert b"\x1b" not in run.output
    assert "order: SUCCESS, 2 of 2 tasks done, 2 retries, " in run.scrollback
    assert run.screen.rows[-1] == f"SUCCESS; {SHOW}"


def test_each_failure_and_retry_is_displayed_or_counted_once(shop: Shop) -> None:
    with shop.terminal(f"flow run :unreachable --flow-id {UUID}", env={"NO_COLOR": "1"}) as run:
        run.wait_for(r"order: 0 of 1 task done, 1 running, 15 retries \(call\), ")
        shop.finish(run)
    text = run.scrollback
    displayed = re.findall("order: task 'call' (?:failed|runs again)", text)
    counted = map(int, re.findall(r"order: (\d+) more failures and retries", text))
    assert len(displayed) + sum(counted) == 15 + 15, text


def test_pipe_receives_data_and_terminal_shows_tree(shop: Shop) -> None:
    shop.go()
    with shop.terminal(f"flow run :retried --flow-id {UUID}", piped=True) as run:
        assert run.end() == 0
    assert json.loads(run.piped_output)["state"] == "SUCCESS"
    assert matched((r"order  SUCCESS  .*", r"└── ✔ ship  attempt 3"), run.screen.rows)
    assert run.screen.rows[-1] == f"SUCCESS; {SHOW}"


def test_terminal_that_is_resized_shows_whole_tree(shop: Shop) -> None:
    tree = (
        "order  RUNNING .* 2 of 4 .*",
        "├── ▶ packing  1/2",
        "│   └── ▶ label  .*",
        "└── ○ send",
    )
    with shop.terminal(f"flow run :nested --flow-id {UUID}", columns=120, lines=40) as run:
        run.wait_for(lambda: matched(tree, run.screen.rows))
        for columns, lines in ((60, 10), (80, 24)):
            run.resize(columns, lines)
            received = len(run.output)
            run.wait_for(lambda since=received: len(run.output) > since + 2000)
            assert matched(tree, run.screen.rows)
            assert run.text.count("packing") == run.text.count("RUNNING") == 1
        shop.finish(run)
    assert matched(("order  SUCCESS .* 4 of 4 .*", "order: SUCCESS, .*"), run.screen.rows)


def test_log_lines_appear_above_tree(shop: Shop) -> None:
    with shop.terminal(f"flow run :logged --flow-id {UUID}") as run:
        run.wait_for("▶ label")
        received = len(run.output)
        run.wait_for(lambda: len(run.output) > received + 1000)
        assert "WARNING tests.terminal.flows: done: 注文 word" in run.screen.rows[0]
        tree = (
            r"order  RUNNING .* 1 of 2 tasks done, 1 running  .*",
            "├── ✔ pack",
            "└── ▶ label .*",
        )
        assert matched(tree, run.screen.rows[-3:])
        assert run.text.count("RUNNING") == 1
        shop.finish(run)


def test_ctrl_c_suspends_and_resume_finishes(shop: Shop) -> None:
    with shop.terminal(f"flow run :nested --flow-id {UUID}") as run:
        run.wait_for("▶ label")
        shop.suspend(run)
    assert matched(
        (
            "suspending after the running tasks; press Ctrl-C again to stop at once",
            r"order  SUSPENDED  ━+[╸╺]?━*  3 of 4 tasks done  .*",
            r"├── ✔ packing  2/2",
            r"└── ○ send",
        ),
        run.screen.scrollback,
    ), run.scrollback
    assert run.screen.rows[-1] == f"suspended; {RESUME}"
    resume = shop.run(run.screen.rows[-1].partition("wbengine ")[2])
    assert resume.process.returncode == 0
    assert matched(("order  SUCCESS .* 4 of 4 tasks done .*",), resume.screen.rows)
    assert resume.screen.rows[-1] == f"order {UUID}: SUSPENDED → SUCCESS"


@pytest.mark.parametrize(
    ("flow", "step"), [(":nested", "label"), ("tests.terminal.workflows:loop", "120 hold")]
)
def test_second_ctrl_c_stops_run_at_once(shop: Shop, flow: str, step: str) -> None:
    with shop.terminal(f"flow run {flow} --flow-id {UUID}") as run:
        run.wait_for(f"▶ {step}")
        run.press(CTRL_C)
        run.wait_for("suspending after the running tasks")
        pressed = time.monotonic()  # further signals within 0.1 s count as the same Ctrl-C
        run.wait_for(lambda: time.monotonic() > pressed + 0.2)
        interrupt(run)
    assert run.screen.rows[-1] == f"stopped; {RESUME}"
    assert b"\x1b[?25h" in run.output, "the cursor is hidden"


def test_task_that_waits_for_its_next_attempt_is_retrying(shop: Shop) -> None:
    with shop.terminal(f"flow run :delayed --flow-id {UUID}", columns=120) as run:
        run.wait_for(r"└── ↻ ship  retrying  ValueError: out of paper  again in (900|8\d\d) s")
        assert re.match(r"order  RUNNING .* 1 of 2 tasks done, 1 retrying", run.screen.rows[0])
        interrupt(run)
    assert run.screen.rows[-1] == f"suspended; {RESUME}"


def test_task_with_eta_is_shown_with_its_start_time(shop: Shop) -> None:
    with shop.terminal(f"flow run :starts_later --flow-id {UUID}", columns=120) as run:
        run.wait_for(r"└── ▶ ship  starts at [\d: -]+, in 1[45] min")
        interrupt(run)
    assert run.screen.rows[-1] == f"suspended; {RESUME}"


def test_failed_task_of_large_flow_is_shown_and_the_others_are_counted(shop: Shop) -> None:
    run = shop.run(f"flow run :large --flow-id {UUID} --engine serial://?never_resolve=true")
    drawn, _, _ = run.scrollback.partition("order: FAILURE")
    assert re.match("order  FAILURE .*  40 of 81 tasks done, 1 failure", drawn)
    assert "├── ✘ print  failure  ValueError: out of paper\n" in drawn
    folded = re.search(r"└── \.\.\. (\d+) more tasks: (.*)", drawn)
    assert folded is not None, drawn
    counts = {state: int(count) for count, state in re.findall(r"(\d+) (\w+)", folded[2])}
    shown = Counter(re.findall(r"── (.) [a-z]", drawn))
    assert int(folded[1]) == sum(counts.values()) == 81 - shown.total()
    assert counts.get("success", 0) + shown["✔"] == 40
    assert counts.get("pending", 0) + shown["○"] == 40


def test_control_sequences_in_names_are_escaped(shop: Shop) -> None:
    run = shop.run(f"flow run :hostile --flow-id {UUID}")
    show = shop.run(f"flow show {UUID}")
    watch = shop.run(f"flow watch {UUID}")
    for each in (run, show, watch):
        rows = each.screen.scrollback
        assert matched((r"or\\x1b\[2Jder  REVERTED .*",), rows), each.text
        assert matched((r"├── ↶ pay\\x1b\[31m\\nnow  reverted.*",), rows), each.text
        assert matched((r"└── ↶ pr\\x1b\[Aint  (failed, )?reverted .*",), rows), each.text


def test_limited_flow_is_suspended_with_its_counts(shop: Shop) -> None:
    with shop.terminal(f"flow run :limited --flow-id {UUID}") as run:
        run.wait_for("RUNNING .* 1 of 3 tasks done")
        interrupt(run)
    assert matched((r"order  SUSPENDED .* 1 of 3 tasks done .*", "└── ○ call-2"), run.screen.rows)
    assert run.screen.rows[-1] == f"suspended; {RESUME}"


def test_detached_run_prints_how_to_follow_it(shop: Shop) -> None:
    run = shop.run(f"flow run :nested --flow-id {UUID} --detach")
    assert run.process.returncode == 0
    assert run.screen.rows[0] == UUID
    assert run.screen.rows[-1].strip().endswith(f"wbengine flow watch {UUID}")
    with shop.terminal(f"flow watch {UUID} --interval 0.1") as watch:
        watch.wait_for(
            lambda: matched(
                ("order  RUNNING .* 2 of 4 tasks done, 1 running .*", "│   └── ▶ label.*"),
                watch.screen.rows,
            )
        )
        shop.finish(watch)
    assert matched(("order  SUCCESS .* 4 of 4 tasks done .*",), watch.screen.rows)
    assert watch.screen.rows[-1] == f"SUCCESS; {SHOW}"
