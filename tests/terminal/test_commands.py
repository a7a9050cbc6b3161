"""Screens of commands that show and change flows."""

from __future__ import annotations

import contextlib
import re
import signal

import pytest

from tests.support.failed_flows import store_flows
from tests.support.terminals import CTRL_C
from tests.terminal.conftest import FLOWS, Shop, interrupt, matched
from wbengine import operations
from wbengine.persistence import backends

UUID = "11111111-0000-4000-8000-000000000001"
SHOW = f"details: wbengine flow show {UUID}"


def stored(shop: Shop, **uuids: str) -> None:
    """Run flows of the module `flows` in this process with these UUIDs."""
    shop.go()
    with (
        contextlib.chdir(shop.folder),
        contextlib.closing(backends.fetch(shop.environment["WBENGINE_PERSISTENCE"])) as backend,
    ):
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()
        for flow, uuid in uuids.items():
            engine = operations.start(backend, f"{FLOWS}:{flow}", uuid=uuid)
            with contextlib.suppress(ValueError):
                engine.run()


def test_list_of_flows_is_table_with_states_and_counts(shop: Shop) -> None:
    stored(
        shop,
        success="aaaaaaaa-0000-4000-8000-000000000001",
        fails="bbbbbbbb-0000-4000-8000-000000000001",
        retried="cccccccc-0000-4000-8000-000000000001",
        named="dddddddd-0000-4000-8000-000000000001",
    )
    wide = shop.run("flow list", columns=120).screen.rows
    assert re.fullmatch(r" UUID +NAME +STATE +TASKS +CREATED +OWNER +ERROR", wide[1])
    assert matched(
        (
            r" dddddddd   注文の処理.*   SUCCESS +3/3   .*",
            r" cccccccc   order +SUCCESS +2/2   .*   - +-",
            r" bbbbbbbb   order +REVERTED +0/3   .*   - +print: ValueError: out of",
            r" aaaaaaaa   order +SUCCESS +2/2   .*",
        ),
        wide,
    ), wide
    narrow = shop.run("flow list --state REVERTED", env={"NO_COLOR": "1"})
    assert b"\x1b" not in narrow.output
    assert matched((r" bbbbbbbb   order   REVERTED     0/3   .*",), narrow.screen.rows)
    with shop.terminal("flow list --name order", piped=True) as piped:
        piped.end()
    assert [line.split()[:4] for line in piped.piped_output.decode().splitlines()] == [
        ["UUID", "NAME", "STATE", "TASKS"],
        ["cccccccc-0000-4000-8000-000000000001", "order", "SUCCESS", "2/2"],
        ["bbbbbbbb-0000-4000-8000-000000000001", "order", "REVERTED", "0/3"],
        ["aaaaaaaa-0000-4000-8000-000000000001", "order", "SUCCESS", "2/2"],
    ]


def test_failed_task_is_not_counted_as_done_in_list(shop: Shop) -> None:
    shop.run("flow run :fails --engine serial://?never_resolve=true")
    rows = shop.run("flow list", columns=120).screen.rows
    assert matched((r" \w{8}   order +FAILURE +2/3   .*",), rows), rows


def test_stored_flow_is_shown_with_attempts_events_and_logs(shop: Shop) -> None:
    logged = "22222222-0000-4000-8000-000000000001"
    stored(shop, retried=UUID, logged=logged)
    show = shop.run(f"flow show {UUID}")
    assert matched(
        (
            rf"flow     order  {UUID}",
            r"state    SUCCESS",
            r"order  SUCCESS  ━+  2 of 2 tasks done  .*",
            r"├── ✔ pack  .*",
            r"└── ✔ ship  tests\.terminal\.flows\.ship  attempt 3  .*  \[3 retries\]",
        ),
        show.screen.rows,
    ), show.text
    assert not re.search("_retry|with retries| book", show.scrollback)
    events = shop.run(f"flow events {UUID}", columns=120, lines=60).screen.rows
    ship = [row.split()[3] for row in events if re.search(r"   ship   ", row)]
    failed = ["RUNNING", "FAILURE", "REVERTING", "REVERTED"]
    assert ship == [*failed, *failed, "RUNNING", "SUCCESS"]
    assert not any("_retry" in row for row in events)
    logs = shop.run(f"flow logs {logged}").scrollback
    assert "WARNING pack: done: 注文 word" in logs
    watch = shop.run(f"flow watch {UUID}")
    assert matched((r"order  SUCCESS .*", r"└── ✔ ship  attempt 3 .*"), watch.screen.rows)
    assert watch.screen.rows[-1] == f"SUCCESS; {SHOW}"


def test_logs_from_info_on_are_kept_without_options(shop: Shop) -> None:
    run = shop.run(f"flow run :noted --flow-id {UUID}")
    line = f"logs of its tasks are kept (INFO and higher): wbengine flow logs {UUID}"
    assert line in " ".join(run.scrollback.split())
    assert line in " ".join(shop.run(f"flow show {UUID}").scrollback.split())
    logs = shop.run(f"flow logs {UUID}", columns=120)
    assert re.fullmatch(r"\S+ INFO pack: packed in a box", logs.screen.rows[0])
    assert len(logs.screen.rows) == 2 and "--log-level debug" in logs.screen.rows[1]
    other = "22222222-0000-4000-8000-000000000001"
    with shop.terminal(f"--log-level debug flow run :noted --flow-id {other}", columns=120) as run:
        run.end()
    rows = shop.run(f"flow logs {other}", columns=120).screen.rows
    assert [row.split()[1] for row in rows[:2]] == ["INFO", "DEBUG"]


def test_logs_name_items_of_map(shop: Shop) -> None:
    shop.run(f"flow run :letters --flow-id {UUID}")
    logs = shop.run(f"flow logs {UUID}").screen.rows
    assert [row.split(" ", 2)[2] for row in logs[:2]] == [
        "letters[0]: sent 0", "letters[1]: sent 1",
    ]  # fmt: skip


def test_level_that_excludes_logs_is_named(shop: Shop) -> None:
    stored(shop, noted=UUID)
    logs = shop.run(f"flow logs {UUID}")
    assert logs.screen.rows[0] == "No log lines of level WARNING or higher."
    assert "logging.getLogger().setLevel(logging.INFO)" in " ".join(logs.scrollback.split())


def test_wide_characters_and_durations_fit(shop: Shop) -> None:
    stored(shop, wide=UUID)
    line = f"would delete '注文の処理注文の処理' ({UUID}, SUCCESS)"
    forget = shop.run(f"flow delete {UUID} --dry-run")
    assert " ".join(forget.scrollback.split()) == line
    show = shop.run(f"flow show {UUID}").screen.rows
    (took,) = re.findall(r"└── ✔ 予約  \S+  ([\d.]+ m?s)", "\n".join(show))
    number, unit = took.split()
    assert 0.2 <= float(number) / (1000 if unit == "ms" else 1) < 10


def test_failed_items_of_map_are_counted_and_listed_first(shop: Shop) -> None:
    stored(shop, numbers=UUID)
    rows = shop.run(f"flow show {UUID}", lines=200, columns=120).screen.rows
    assert matched(
        (
            r"└── ✔ halves  \(map\) .* 297 success, 3 failure  .*",
            r" ITEM   INPUT   STATE +WORKER +TOOK   TRIES   ERROR",
            r"   99   int     FAILURE .* ValueError: 99 is bad",
            r"  299   int     FAILURE .* ValueError: 299 is bad",
            r"    0   int     SUCCESS .*",
        ),
        rows,
    ), rows


def test_flow_that_waits_for_signal_continues_with_it(shop: Shop) -> None:
    with shop.terminal(f"flow run :waits --flow-id {UUID}") as run:
        run.wait_for("WAITING .* 1 of 2 tasks done, 1 waiting")
        run.wait_for("⚐ approval  waiting  for signal 'approved' since ")
        listed = shop.run("flow list").screen.rows
        assert matched((" 11111111   order   WAITING .* 1/2 .*",), listed)
        show = shop.run(f"flow show {UUID}").scrollback
        assert "waits    approval: Waiting for signal 'approved'" in show
        assert "to send the signal:" in show and f"wbengine flow signal {UUID} approved" in show
        signal = shop.run(f"flow signal {UUID} approved")
        assert signal.screen.rows == [f"order {UUID}: received signal approved"]
        assert run.end() == 0
    assert matched(("order  SUCCESS .* 2 of 2 tasks done .*", "└── ✔ approval"), run.screen.rows)


def test_time_left_to_wait_for_signal_is_shown(shop: Shop) -> None:
    left = r"\(until [-\d :]+, in (1 h|\d+ min( \d+ s)?)\)"
    with shop.terminal(f"flow run :waits_an_hour --flow-id {UUID}", columns=120) as run:
        run.wait_for(rf"⚐ approval  waiting  for signal 'approved' since [-\d :]+ {left}")
        show = " ".join(shop.run(f"flow show {UUID}", columns=120).scrollback.split())
        assert re.search(rf"Waiting for signal 'approved' since [-\d :]+ {left}", show), show
        interrupt(run)


def test_cancelled_flow_is_shown_as_cancelling_and_cancelled(shop: Shop) -> None:
    with shop.terminal(f"flow run :nested --flow-id {UUID}") as run:
        run.wait_for("▶ label")
        cancel = shop.run(f"flow cancel {UUID} --reason enough")
        assert cancel.screen.rows == [
            f"order {UUID}: RUNNING → CANCELLING",
            f"to watch it: wbengine flow watch {UUID}",
        ]
        run.wait_for("order  CANCELLING ")
        assert matched(
            (" 11111111   order   CANCELLING .* 2/4 .*",), shop.run("flow list").screen.rows
        )
        shop.go()
        assert run.end() == 1
    assert matched(
        (
            r"order  CANCELLED  ━+  0 of 4 tasks done, 3 reverted  .*",
            r"│   └── ↶ label  reverted",
            r"└── ○ send",
            r"order: CANCELLED, 0 of 4 tasks done, 3 reverted, .*",
        ),
        run.screen.scrollback,
    ), run.scrollback
    assert " ".join(run.scrollback.split()).endswith(f"CANCELLED; {SHOW}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_operation_on_many_flows_is_named_below_its_progress(
    number: signal.Signals, shop: Shop
) -> None:
    url = f"sqlite:///{shop.folder}/flows.db"
    with backends.backend(url) as backend:
        store_flows(backend, 40)
    env = {"WBENGINE_PERSISTENCE": url}
    with shop.terminal("flow retry --all --yes --rate 4/s", columns=120, env=env) as run:
        run.wait_for(r"retry +\[#")
        run.signal(number)
        assert run.end() == 128 + number
    assert not run.screen.cursor.hidden
    assert any(row.startswith("operation ") for row in run.screen.scrollback), run.scrollback


def test_sigterm_shows_the_cursor_below_a_watched_flow(shop: Shop) -> None:
    with shop.terminal(f"flow run :nested --flow-id {UUID}") as run:
        run.wait_for("▶ label")
        with shop.terminal(f"flow watch {UUID}") as watch:
            watch.wait_for("▶ label")
            assert watch.screen.cursor.hidden
            watch.signal(signal.SIGTERM)
            assert watch.end() == 128 + signal.SIGTERM
        assert not watch.screen.cursor.hidden
        shop.finish(run)


def test_limit_that_delays_tasks_is_listed(shop: Shop) -> None:
    with shop.terminal(f"flow run :limited --flow-id {UUID}") as run:
        run.wait_for("RUNNING .* 1 of 3 tasks done")
        rows = shop.run("limits").screen.rows
        # The terminal is too narrow for a table.
        for pattern in (r"LIMIT .*flows\.Step", "RATE +1/m", "WAITING +[12]", "FLOWS +1"):
            assert any(re.fullmatch(pattern, row.strip()) for row in rows), (pattern, rows)
        interrupt(run)


def test_submitted_flow_is_served_and_can_be_followed(shop: Shop) -> None:
    submit = shop.run("flow submit :nested")
    uuid = submit.screen.rows[0]
    assert submit.screen.rows[-1].strip().endswith(f"wbengine flow watch {uuid}")
    with shop.terminal("serve") as serve:
        serve.wait_for("press Ctrl-C to stop")
        with shop.terminal(f"flow watch {uuid} --interval 0.1") as watch:
            watch.wait_for(
                lambda: matched(
                    ("order  RUNNING .* 2 of 4 tasks done, 1 running .*", "│   └── ▶ label.*"),
                    watch.screen.rows,
                )
            )
            shop.finish(watch)
        serve.wait_for("ended in SUCCESS")
        serve.press(CTRL_C)
        assert serve.end() == 0
    assert "stopping after the running tasks; press Ctrl-C again to stop at once" in serve.text


@pytest.mark.slow
def test_fleet_is_shown_while_worker_is_busy(shop: Shop) -> None:
    with shop.worker() as worker, shop.terminal("flow run :nested --engine workers") as run:
        run.wait_for(
            lambda: matched(
                ("order  RUNNING .* 2 of 4 tasks done, 1 running .*", "│   └── ▶ label .*"),
                run.screen.rows,
            )
        )
        (name,) = re.findall("worker (.*)", worker.screen.rows[0])
        workers = shop.run("workers list").screen.rows
        assert re.fullmatch(rf" {name} +busy +flows +1/\d+ .*", workers[3])
        queues = shop.run("queues list").scrollback
        assert matched((r" flows\.\w+ +requests +0 +1 +flows",), queues.splitlines())
        status = shop.run("status").screen.rows
        assert matched((r"workers +1 \(1 busy\)", r"slots +1 of \d+ busy"), status)
        shop.finish(run)
    stopping = "press Ctrl-C to stop after the running tasks, twice to stop at once"
    assert stopping in worker.scrollback
    assert "finishing 0 running tasks" in worker.scrollback


def test_doctor_fits_terminal_and_ends_with_verdict(shop: Shop) -> None:
    doctor = shop.run("doctor", lines=60)
    assert doctor.process.returncode == 0
    assert doctor.screen.rows[-1] == "no problems found"
    rows = doctor.screen.rows
    assert matched(("✔ broker:.*", "    fix: start a worker:.*", "- store: .*"), rows), rows


def test_dev_prints_how_to_use_and_stop_it(shop: Shop) -> None:
    # Rows with paths must fit, also with a long name of the temporary folder.
    with shop.terminal(f"dev {FLOWS} --port 0", columns=300) as dev:
        dev.wait_for("Press Ctrl-C to stop everything.")
        assert matched(
            (
                r"broker       filesystem:///.*",
                r"  export WBENGINE_URL=filesystem:///.*/broker",
                r"  export WBENGINE_PERSISTENCE=sqlite:///.*/flows\.db",
                r"  wbengine flow run MODULE:FACTORY --engine workers",
            ),
            dev.screen.rows,
        )
        dev.press(CTRL_C)
        assert dev.end() == 0
    assert "stopping; press Ctrl-C again to stop at once" in dev.text
