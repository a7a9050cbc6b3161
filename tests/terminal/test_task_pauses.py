"""Screens of `wbengine tasks`, and of flows whose tasks are paused."""

from __future__ import annotations

import re

from tests.terminal.conftest import FLOWS, Shop, matched

UUID = "11111111-0000-4000-8000-000000000001"
STEP = f"{FLOWS}.Step"
REASON = "the bank is down"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_pauses_are_listed_until_they_are_resumed(shop: Shop) -> None:
    first = shop.run(["tasks", "pause", STEP, "--reason", REASON])
    assert first.screen.rows == [
        f"{STEP}: paused", f"to resume it: wbengine tasks resume '{STEP}'"
    ]  # fmt: skip
    second = shop.run("tasks pause shop.* --for 2h")
    assert re.fullmatch(rf"shop\.\*: paused until {TIME}", second.screen.rows[0])
    rows = shop.run("tasks list", columns=130).screen.rows
    assert re.fullmatch(r" PAUSED +SINCE +UNTIL +BY +REASON", rows[1])
    assert re.fullmatch(rf" shop\.\* +{TIME}   {TIME}   \S+@\S+ +-", rows[3])
    assert re.fullmatch(rf" {re.escape(STEP)}   {TIME}   - +\S+@\S+ +{REASON}", rows[4])
    narrow = shop.run("tasks list").screen.rows
    assert matched((rf"PAUSED  {re.escape(STEP)}", r"UNTIL   -", rf"REASON  {REASON}"), narrow)
    assert shop.run("tasks resume shop.*").screen.rows == ["shop.*: resumed"]
    assert shop.run(f"tasks resume {STEP}").screen.rows == [f"{STEP}: resumed"]
    assert shop.run("tasks list").screen.rows == ["No task types are paused."]


def test_paused_task_of_running_flow_waits_with_reason_until_pause_ends(shop: Shop) -> None:
    """The pause that has no end is replaced with one that expires by itself."""
    shop.run(["tasks", "pause", STEP, "--reason", REASON])
    waits = rf"paused by \S+ since [-\d :]+: {REASON}"
    with shop.terminal(f"flow run :nested --flow-id {UUID}", columns=120) as run:
        run.wait_for("order  RUNNING .* 0 of 4 tasks done, 1 paused ")
        with shop.terminal(f"flow watch {UUID} --interval 0.1", columns=160) as watch:
            watch.wait_for(rf"├── . reserve .* {waits}")
            show = " ".join(shop.run(f"flow show {UUID}").scrollback.split())
            assert re.search(rf"waits reserve: Its task type is {waits}", show), show
            shop.run(f"tasks pause {STEP} --for 0.2")
            shop.finish(watch)
        assert run.end() == 0
    assert matched((r"order  SUCCESS  ━+  4 of 4 tasks done  .*",), run.screen.rows)
    assert shop.run("tasks list").screen.rows == ["No task types are paused."]
