"""Screens of `wbengine flow run` for workflows."""

from __future__ import annotations

import pytest

from tests.support.terminals import Terminal
from tests.terminal.conftest import Shop, interrupt, matched

UUID = "11111111-0000-4000-8000-000000000002"
WORKFLOWS = "tests.terminal.workflows"


def command(name: str) -> str:
    return f"flow run {WORKFLOWS}:{name} --flow-id {UUID}"


def check_rows(terminal: Terminal) -> None:
    """Require that nothing was scrolled off while the tree was redrawn."""
    screen = terminal.screen
    assert len(screen.scrollback) == len(screen.rows) <= screen.lines, terminal.scrollback


def test_loop_stays_folded_while_it_runs(shop: Shop) -> None:
    with shop.terminal(command("loop")) as run:
        run.wait_for("60 x poll, sleep-0; the latest:")
        run.wait_for(r"▶ 120 hold  .*s")
        assert matched(
            (
                r"loop  RUNNING .* 120 of 121 steps done, 1 running .*",
                r"└── ▶ loop  .*s",
                r"    ├── 60 x poll, sleep-0; the latest:",
                r"    ├── ✔ 118 poll  .*s",
                r"    ├── ✔ 119 sleep-0  .*s",
                r"    └── ▶ 120 hold  .*s",
            ),
            run.screen.rows,
        ), run.text
        check_rows(run)
        shop.finish(run)
    assert matched((r"loop  SUCCESS .*", r"    └── ✔ 120 hold .*"), run.screen.rows), run.text


@pytest.mark.parametrize("lines", [12, 24])
def test_steps_that_cannot_be_folded_fit_the_screen(shop: Shop, lines: int) -> None:
    with shop.terminal(command("various"), lines=lines) as run:
        run.wait_for(r"└── ▶ 150 hold  .*s")
        assert matched((r"    ├── \.\.\. 1\d\d earlier steps",), run.screen.rows), run.text
        assert len(run.screen.rows) > lines - 5
        check_rows(run)
        shop.finish(run)
    assert len(run.screen.scrollback) < 80


def test_map_of_a_workflow_shows_running_and_queued_steps(shop: Shop) -> None:
    with shop.terminal(f"{command('mapping')} --engine parallel://?max_workers=2") as run:
        run.wait_for("298 x hold; the latest:")
        assert matched(
            (r".*▶ 0 hold .*s", r".*▶ 1 hold .*s", r".*◷ 299 hold  queued"), run.screen.rows
        ), run.text
        check_rows(run)
        shop.finish(run)
    assert "300 x hold" in run.scrollback


def test_retried_and_reverted_steps_are_shown(shop: Shop) -> None:
    with shop.terminal(command("checkout"), columns=120) as run:
        run.wait_for("waiting for signal 'approved'")
        run.wait_for("checkout  WAITING")
        assert matched(
            (
                r"checkout  WAITING .* 2 of 5 steps done, 1 waiting, .*",
                r"└── ⚐ checkout  waiting",
                r"    ├── ✔ 0 ship  attempt 3 .*",
                r"    ├── ↶ 1 book  reverted .*",
                r"    ├── ↶ 2 broken  reverted .*ValueError: out of paper",
                r"    ├── ✔ 3 revert-scope",
                r"    └── ⚐ 4 wait-for-approved  waiting for signal 'approved' since .* \(until .*",
            ),
            run.screen.rows,
        ), run.text
        interrupt(run)


def test_reversion_of_a_workflow_is_shown_while_it_runs(shop: Shop) -> None:
    with shop.terminal(command("undone"), columns=120) as run:
        run.wait_for(r"↩ 0 book  reverting .*s")
        assert matched(
            (r".*↩ undone .*", r".*↩ 0 book .*", r".*↶ 1 book .*", r".*2 broken .*"),
            run.screen.rows,
        ), run.text
        shop.go()
        assert run.end() == 1
    assert matched((r"undone  REVERTED .*", r".*↶ 0 book  reverted .*"), run.screen.scrollback)


def test_ctrl_c_suspends_a_workflow_which_continues(shop: Shop) -> None:
    with shop.terminal(command("loop")) as run:
        run.wait_for("▶ 120 hold")
        shop.suspend(run)
    assert matched((r"loop  SUSPENDED .*", r".*✔ 120 hold .*"), run.screen.scrollback), run.text
    resume = shop.run(f"flow resume {UUID}")
    assert resume.process.returncode == 0
    assert matched(
        (r"loop  SUCCESS .*", r".*60 x poll, sleep-0; the latest:", r".*✔ 120 hold .*"),
        resume.screen.scrollback,
    ), resume.text


def test_workflow_in_a_nested_flow_shows_its_steps(shop: Shop) -> None:
    with shop.terminal(command("nested")) as run:
        run.wait_for("▶ 120 hold")
        assert matched(
            (
                r"outer  RUNNING .* 1 of 3 tasks done, 1 running .*",
                r"├── ✔ reserve",
                r"└── ▶ inner  0/2",
                r"    ├── ▶ loop  .*s",
                r"    │   ├── 60 x poll, sleep-0; the latest:",
                r"    │   └── ▶ 120 hold .*",
                r"    └── ○ send",
            ),
            run.screen.rows,
        ), run.text
        check_rows(run)
        shop.suspend(run)


@pytest.mark.slow
def test_many_running_workflows_fit_the_screen(shop: Shop) -> None:
    with shop.terminal(f"{command('several')} --engine parallel://?max_workers=2") as run:
        run.wait_for(r"▶ loop-0 .*s")
        run.wait_for(r"earlier steps")
        check_rows(run)
        shop.finish(run)
    assert "60 of 60 tasks done" in run.scrollback


def test_step_that_waits_for_a_permit_is_shown(shop: Shop) -> None:
    with shop.terminal(command("limited"), columns=100) as run:
        run.wait_for("starts when the limit permits it: 1/h")
        interrupt(run)
