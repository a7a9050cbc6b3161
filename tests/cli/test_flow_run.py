"""`wbengine flow run`, `resume`, `retry`, `revert`, `suspend`, `cancel`, `delete`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ORDER, SLOW, Answer, Command, appears, slow_flow, state
from tests.support.workers import until
from wbengine import engines
from wbengine._cli import detaching, errors
from wbengine._concurrency import crash_points
from wbengine.persistence import backends, models
from wbengine.views import flow_status, watcher

PRICED = "tests.cli.shop:priced"


pytestmark = pytest.mark.usefixtures("quiet_store")


def done(home: Path) -> list[str]:
    path = home / "done"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def wish(wbengine: Command, flow: str) -> object:
    return wbengine("flow", "show", flow, "--json").json["wish"]


def failed(wbengine: Command, home: Path) -> str:
    """Return a flow that failed and was reverted."""
    (home / "broken").touch()
    flow = str(wbengine("flow", "run", ORDER).json["uuid"])
    (home / "broken").unlink()
    done(home)
    return flow


def test_flow_run_prints_only_its_result_as_json(wbengine: Command) -> None:
    answer = wbengine("flow", "run", ORDER)
    assert (answer.code, answer.err) == (0, "")
    result = answer.json
    assert result.pop("duration") >= 0
    assert uuid.UUID(result.pop("uuid"))
    assert result == {
        "schema": "wbengine/flow-run/1",
        "name": "order",
        "state": "SUCCESS",
        "shown_state": "SUCCESS",
        "results": {"reserved": "reserve", "payd": "pay", "packd": "pack", "sendd": "send"},
        "failures": [],
    }


@pytest.mark.parametrize("engine", ["serial", "parallel", "parallel://?max_workers=2"])
def test_flow_runs_on_each_engine(engine: str, wbengine: Command) -> None:
    assert wbengine("flow", "run", ORDER, "--engine", engine).json["state"] == "SUCCESS"


def test_flow_runs_on_workers_and_shows_them(wbengine: Command, home: Path) -> None:
    wbengine.setenv("WBENGINE_TRANSPORT_OPTIONS", json.dumps({"data_folder_in": f"{home}/broker",
        "data_folder_out": f"{home}/broker"}))  # fmt: skip
    wbengine.setenv("WBENGINE_EXCHANGE", "here")
    options = [f"--transport-option=data_folder_{end}={home}/broker" for end in ("in", "out")]
    words = ("--exchange", "here", "--topic", "t", "--tasks", "tests.cli.shop", "--quiet")
    worker = wbengine.begin("worker", *words, *options)
    answer = wbengine("flow", "run", ORDER, "--engine", "workers")
    assert (answer.code, answer.json["state"]) == (0, "SUCCESS")
    assert len(done(home)) == 4
    assert f"-{worker.pid}-" in wbengine("flow", "show", answer.json["uuid"]).out
    worker.terminate()
    assert worker.wait(timeout=60) == 0


KEPT = "12345678-1234-4123-8123-123456789012"

#: A module that cannot be imported again before `go` exists.
LATE = """
import sys
import time
from pathlib import Path
from tests.cli.shop import order

if "resume" in sys.argv:  # reading the open files of the store would release its locks
    Path("loading").touch()
    while not Path("go").exists():
        time.sleep(0.01)
flow = order()
"""

NOISY = r"""
import os
from wbengine import task
from wbengine.patterns import linear_flow

print("imported")

class Says(task.Task):
    def execute(self):
        print("said")
        os.write(1, b"written\n")
        if os.path.exists("broken"):
            raise ValueError("no")

    def revert(self, **_):
        print("undone")

def flow():
    print("made")
    return linear_flow.Flow("noisy").add(Says())
"""


def test_output_of_tasks_is_written_to_standard_error(wbengine: Command, home: Path) -> None:
    (home / "noisy.py").write_text(NOISY)
    (home / "broken").touch()
    answer = wbengine.apart("flow", "run", "noisy:flow")
    assert answer.json["state"] == "REVERTED"
    for words in ("imported", "made", "said", "written", "undone"):
        assert f"{words}\n" in answer.err
    (home / "broken").unlink()
    again = wbengine("flow", "retry", answer.json["uuid"], "-I", "noisy")
    assert again.json["state"] == "SUCCESS" and "said\n" in again.err
    assert wbengine("graph", "noisy:flow", "-f", "json").json["name"] == "noisy"


#: A flow that another process reverts while it is loaded, if `race` exists.
RACED = """
from pathlib import Path
from tests.cli.shop import order
from wbengine import operations
from wbengine.persistence import backends

def flow():
    race = Path("race")
    if race.exists():
        uuid = race.read_text()
        race.unlink()
        with backends.backend("dir:flows") as store:
            try:
                operations.revert(store, uuid).run()
            except ValueError:
                pass
    return order()
"""


@pytest.mark.parametrize("command", [("resume",), ("retry",), ("revert", "--yes")])
def test_command_that_lost_a_race_reports_it(command: tuple[str, ...], wbengine: Command) -> None:
    """It exits with 1, also if it should have caused the state that it found."""
    (wbengine.folder / "raced.py").write_text(RACED)
    (wbengine.folder / "broken").touch()
    flow = wbengine("flow", "run", "raced:flow", "--engine", "serial://?never_resolve=1").json[
        "uuid"
    ]
    (wbengine.folder / "broken").unlink()
    (wbengine.folder / "race").write_text(flow)
    answer = wbengine("flow", command[0], flow, *command[1:])
    assert answer.code == 1 and "has ended in REVERTED since" in answer.err
    assert done(wbengine.folder) == ["reserve", "pay", "-pack", "-pay", "-reserve"]
    assert state(wbengine, flow) == "REVERTED"


def test_failed_flow_prints_its_failure(wbengine: Command, home: Path) -> None:
    (home / "broken").touch()
    answer = wbengine("flow", "run", ORDER)
    assert answer.code == 1
    assert (answer.json["state"], answer.json["results"]) == ("REVERTED", {})
    (failure,) = answer.json["failures"]
    assert (failure["atom"], failure["type"]) == ("pack", "ValueError")
    assert "out of paper" in failure["message"]
    assert "canary" not in answer.out + answer.err
    assert done(home) == ["reserve", "pay", "-pack", "-pay", "-reserve"]


def test_inputs_are_read_from_text_or_file(wbengine: Command, home: Path) -> None:
    given = json.dumps({"amount": 4, "api_key": "canary"})
    (home / "given.json").write_text(given)
    for store in (given, "@given.json"):
        answer = wbengine("flow", "run", PRICED, "--inputs", store)
        assert answer.json["results"]["price"] == 6.0
        assert answer.json["results"]["api_key"] == "***"
    assert "canary" not in wbengine("flow", "export", answer.json["uuid"], "--show-values").out
    short = json.dumps({"amount": 4, "api_key": "abc"})
    assert wbengine("flow", "run", PRICED, "--inputs", short).json["results"]["api_key"] == "***"


@pytest.mark.parametrize(
    "words", [(), ("--engine", "parallel"), ("--detach",)], ids=["serial", "parallel", "detached"]
)
def test_run_with_missing_inputs_is_refused_and_stores_nothing(
    words: tuple[str, ...], wbengine: Command
) -> None:
    given = json.dumps({"amonut": 4})
    answer = wbengine("flow", "run", PRICED, "--inputs", given, *words)
    assert (answer.code, answer.out) == (2, "")
    assert "requires 'amount' (did you mean 'amonut'?), 'api_key'" in answer.error
    assert "'api_key' of 'tests.cli.shop.Priced'" in answer.error
    assert wbengine("flow", "list", "--json").json["flows"] == []


def test_flow_id_can_be_chosen_once(wbengine: Command) -> None:
    chosen = str(uuid.uuid4())
    assert wbengine("flow", "run", ORDER, "--flow-id", chosen).json["uuid"] == chosen
    wbengine.fails(2, f"Flow {chosen} already exists", "flow", "run", ORDER, "--flow-id", chosen)


def test_flows_are_listed_by_tag(wbengine: Command) -> None:
    tags = "--tag", "team=billing", "--tag", "month=2026-03"
    march = wbengine("flow", "run", ORDER, "--name", "march", *tags).json["uuid"]
    wbengine("flow", "run", ORDER, "--tag", "team=stock")
    (listed,) = wbengine("flow", "list", *tags, "--json").json["flows"]
    assert (listed["uuid"], listed["name"]) == (march, "march")
    assert listed["tags"] == {"team": "billing", "month": "2026-03"}
    assert "team=stock" in wbengine("flow", "list").out
    assert "month=2026-03" in wbengine("flow", "show", march).out


def test_modules_in_the_current_folder_are_imported(wbengine: Command, home: Path) -> None:
    (home / "mine.py").write_text("from tests.cli.shop import order\nflow = order()\n")
    assert wbengine.apart("flow", "run", "mine:flow").code == 0


def test_deadline_reverts_the_flow(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine, "--deadline", "2")
    time.sleep(2)  # the deadline must pass
    (home / "go").touch()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out)["state"] == "REVERTED"
    assert done(home) == ["reserve", "-reserve"]


def test_task_with_retries_is_counted_once(wbengine: Command) -> None:
    """The implicit retry controller counts neither in lists and drawings nor in JSON."""
    uuid = wbengine("flow", "run", "tests.cli.shop:tried").json["uuid"]
    assert " 2/2 " in wbengine("flow", "list").out
    assert "2 of 2 tasks done" in wbengine("flow", "show", uuid).out
    shown = wbengine("--json", "flow", "show", uuid).json
    assert (shown["counts"], shown["total"]) == ({"SUCCESS": 2}, 2)


def test_ctrl_c_suspends_and_prints_the_resume_command(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine, env={"WBENGINE_QUIET": "0"})
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "suspending" in process.stderr.readline()
    (home / "go").touch()
    out, err = process.communicate(timeout=60)
    flow = json.loads(out)["uuid"]
    assert (process.returncode, json.loads(out)["state"]) == (130, "SUSPENDED")
    assert err == f"suspended; to resume: wbengine flow resume {flow}\n"
    assert done(home) == ["reserve"]
    answer = wbengine("flow", "resume", flow[:8])
    assert (answer.code, answer.json["schema"]) == (0, "wbengine/flow-resume/1")
    assert done(home) == ["pay", "pack", "send"]


def test_second_signal_stops_immediately(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "suspending" in process.stderr.readline()
    time.sleep(0.15)  # closer signals count as one
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    (flow,) = wbengine("flow", "list", "--json").json["flows"]
    assert err == f"stopped; to resume: wbengine flow resume {flow['uuid']}\n"
    (home / "go").touch()
    assert wbengine("flow", "resume", flow["uuid"]).code == 0
    assert done(home) == ["reserve", "pay", "pack", "send"]


@pytest.mark.parametrize("words", [(), ("--detach",)], ids=["attached", "detached"])
def test_ctrl_c_before_the_run_names_the_stored_flow(
    words: tuple[str, ...], wbengine: Command, home: Path
) -> None:
    """The signal arrives as soon as the flow is stored."""

    def press(place: str) -> None:
        if place == "sql.after-logbook-commit":
            os.kill(os.getpid(), signal.SIGINT)

    crash_points.install(press)
    try:
        answer = wbengine("flow", "run", ORDER, "--flow-id", KEPT, *words)
    finally:
        crash_points.install(None)
    assert (answer.code, answer.out) == (130, "")
    how = f"the flow is stored; to resume: wbengine flow resume {KEPT}"
    assert answer.err == f"wbengine flow run: error: interrupted; {how}\n"
    assert wbengine("flow", "resume", KEPT).code == 0
    assert done(home) == ["reserve", "pay", "pack", "send"]


LEAVES = """\
import pathlib
import sys

from wbengine import task
from wbengine.patterns import linear_flow


@task.task
def leaves():
    if not pathlib.Path("go").exists():
        sys.exit(3)


def flow():
    return linear_flow.Flow("f").add(leaves())
"""


def test_task_that_calls_sys_exit_suspends_its_flow(wbengine: Command, home: Path) -> None:
    (home / "leaving.py").write_text(LEAVES)
    words = ["flow", "run", "leaving:flow", "--flow-id", KEPT]
    answer = wbengine.apart(*words, env={"WBENGINE_QUIET": "0"})
    how = f"suspended; to resume: wbengine flow resume {KEPT}\n"
    assert (answer.code, answer.out, answer.err) == (3, "", how)
    assert state(wbengine, KEPT) == "SUSPENDED"
    (home / "go").touch()
    assert wbengine("flow", "resume", KEPT).code == 0


def test_ctrl_c_before_the_flow_is_stored_prints_interrupted(wbengine: Command, home: Path) -> None:
    (home / "soon_pressed.py").write_text("raise KeyboardInterrupt\n")
    answer = wbengine("flow", "run", "soon_pressed:flow", "--flow-id", KEPT)
    assert (answer.code, answer.err) == (130, "\nwbengine flow run: error: interrupted\n")


def test_ctrl_c_does_not_stop_a_detached_flow(wbengine: Command, home: Path) -> None:
    (home / "late.py").write_text(LATE)
    process = wbengine.begin("flow", "run", "late:flow", "--flow-id", KEPT, "--detach")
    appears(home / "loading")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted; process " in err and f"wbengine flow watch {KEPT}" in err
    (home / "go").touch()
    until(lambda: state(wbengine, KEPT) != "PENDING")
    assert wbengine("flow", "watch", KEPT).code == 0


def detached(wbengine: Command, home: Path, *words: str) -> str:
    """Start a detached flow; return its uuid when its first task runs."""
    answer = wbengine.apart("flow", "run", SLOW, "--detach", "--json", *words)
    assert answer.code == 0
    appears(home / "reserve.begun")
    # A new session: closing the terminal does not end the process.
    assert os.getsid(answer.json["pid"]) == answer.json["pid"]
    return str(answer.json["uuid"])


def test_detached_flow_outlives_the_command(wbengine: Command, home: Path) -> None:
    flow = detached(wbengine, home)
    assert state(wbengine, flow) == "RUNNING"
    wbengine.fails(75, "is run by process", "flow", "resume", flow)
    wbengine.fails(75, "suspend it first", "flow", "delete", flow, "--yes")
    (home / "go").touch()
    assert wbengine("flow", "watch", flow).code == 0
    log = home.parent / "state" / "wbengine" / "logs" / f"{flow}.log"
    assert log.read_text() == ""


def test_detached_flow_that_ends_before_the_command_continues_has_started(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def start_and_wait(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        process.wait(60)
        return process

    monkeypatch.setattr(detaching.subprocess, "Popen", start_and_wait)
    monkeypatch.setattr(detaching, "_START_SECONDS", 0.5)
    answer = wbengine("flow", "run", ORDER, "--flow-id", KEPT, "--detach")
    assert (answer.code, answer.out) == (0, f"{KEPT}\n")


def test_watch_reads_end_of_flow_whose_process_ended_meanwhile(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(watcher.FlowWatcher):
        """The first poll reads the flow before its end, and the owner after its end."""

        early = True

        def view(self, now: float | None = None) -> flow_status.FlowView:
            view = super().view(now)
            if self.early:
                self.early = False
                return dataclasses.replace(view, state="RUNNING", owner="it", owner_died=True)
            return view

    assert wbengine("flow", "run", ORDER, "--flow-id", KEPT).code == 0
    monkeypatch.setattr(watcher, "FlowWatcher", Late)
    assert wbengine("flow", "watch", KEPT).code == 0


@pytest.mark.slow
def test_immediate_failure_of_a_detached_flow_is_reported(wbengine: Command, home: Path) -> None:
    (home / "vanishing.py").write_text(
        "import pathlib\nfrom tests.cli.shop import order\n"
        "flow = order()\npathlib.Path('vanishing.py').unlink()\n"
    )
    answer = wbengine("flow", "run", "vanishing:flow", "--detach")
    assert (answer.code, answer.out) == (78, "")
    reason = "flows must be modules or functions that exist, got 'vanishing:flow'"
    assert answer.error.startswith("wbengine flow run: error: the flow did not start: ")
    assert f"{reason}: no module 'vanishing' found" in answer.error


@pytest.mark.parametrize(("command", "code"), [("suspend", 75), ("cancel", 1)])
def test_suspend_and_cancel_reach_a_running_flow(
    command: str, code: int, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_LOG_LEVEL", "info")
    flow = detached(wbengine, home)
    answer = wbengine("flow", command, flow, "--reason", "the shop is closed", "--wait", "0.1s")
    assert answer.code == 75 and "did not end within 0.1 s" in answer.error
    (log,) = (home.parent / "state").glob("**/*.log")
    until(lambda: "is being" in log.read_text())
    (home / "go").touch()
    assert wbengine("flow", "watch", flow).code == code
    assert state(wbengine, flow) == {75: "SUSPENDED", 1: "REVERTED"}[code]
    assert "the shop is closed" in wbengine("flow", "events", flow).out


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_cancelled_flow_is_shown_as_cancelling_and_then_as_cancelled(
    engine: str, wbengine: Command, home: Path
) -> None:
    flow = str(uuid.uuid4())
    words = "--flow-id", flow, "--engine", engine, "--progress"
    process = slow_flow(wbengine, *words, env={"WBENGINE_QUIET": "0"})
    answer = wbengine("flow", "cancel", flow, "--reason", "the shop is closed")
    assert answer.out == f"slow {flow}: RUNNING → CANCELLING\n"
    assert " CANCELLING " in wbengine("flow", "list").out
    assert wbengine("flow", "show", flow, "--json").json["shown_state"] == "CANCELLING"
    assert process.stderr is not None
    assert any(line.startswith("slow: CANCELLING, 0 of 4") for line in process.stderr)
    shown = wbengine("flow", "show", flow).out
    assert "state    CANCELLING" in shown and "cancelled: 1 task is still running" in shown
    (home / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (json.loads(out)["state"], json.loads(out)["shown_state"]) == ("REVERTED", "CANCELLED")
    assert "slow: CANCELLED, 0 of 4" in err
    assert f"CANCELLED; details: wbengine flow show {flow}" in err
    assert " CANCELLED " in wbengine("flow", "list").out
    shown = wbengine("flow", "show", flow).out
    assert "state      CANCELLED" in shown and "the shop is closed (by " in shown


def test_revert_reports_the_death_of_the_engine(wbengine: Command, home: Path) -> None:
    flow = str(uuid.uuid4())
    running = slow_flow(wbengine, "--flow-id", flow)
    running.send_signal(signal.SIGSTOP)  # the process receives no commands
    revert = wbengine.begin("flow", "revert", flow, "--yes", env={"WBENGINE_QUIET": ""})
    until(lambda: wish(wbengine, flow) is not None)
    running.kill()
    running.communicate(timeout=60)
    _, err = revert.communicate(timeout=60)
    assert revert.returncode == 1
    assert "the run ended before the flow was reverted: state RUNNING; to repeat:" in err
    (home / "go").touch()
    assert wbengine("flow", "revert", flow, "--yes").code == 0


def test_retry_repeats_a_reverted_flow(wbengine: Command, home: Path) -> None:
    flow = failed(wbengine, home)
    dry = wbengine("flow", "retry", flow, "--dry-run", "--json").json
    assert (dry["run"], dry["revert"]) == (["reserve", "pay", "pack", "send"], [])
    assert state(wbengine, flow) == "REVERTED"
    answer = wbengine("flow", "retry", flow)
    assert (answer.code, answer.json["state"]) == (0, "SUCCESS")
    assert done(home) == ["reserve", "pay", "pack", "send"]


def test_retry_can_run_detached(wbengine: Command, home: Path) -> None:
    flow = failed(wbengine, home)
    assert wbengine.apart("flow", "retry", flow, "--detach").out == f"{flow}\n"
    assert wbengine("flow", "watch", flow).code == 0
    assert done(home) == ["reserve", "pay", "pack", "send"]


@pytest.mark.parametrize("name", ["../../escaped", "--help"])
def test_flow_id_that_resembles_a_path_or_option_is_only_an_id(
    name: str, wbengine: Command, home: Path
) -> None:
    """A program that writes to the store chooses the ids of flows."""
    with (
        backends.backend(f"dir://{home}/flows") as backend,
        contextlib.closing(backend.get_connection()) as connection,
    ):
        connection.upgrade()
        book, flow = models.LogBook("b"), models.FlowDetail("order", uuid=name)
        book.add(flow)
        connection.save_logbook(book)
        engines.save_factory_details(flow, ORDER.replace(":", "."), (), {}, backend=backend)
    answer = wbengine.apart("flow", "resume", "--detach", "--", name)
    assert answer.out == f"{name}\n", answer.err
    assert wbengine("flow", "watch", "--", name).code == 0
    assert done(home) == ["reserve", "pay", "pack", "send"]
    (log,) = (home.parent / "state" / "wbengine").rglob("*.log")
    assert log.parent.name == "logs" and not list(home.parent.rglob("escaped*"))


def test_revert_reverts_a_suspended_flow(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None and process.stderr.readline()
    (home / "go").touch()
    out, _ = process.communicate(timeout=60)
    flow = json.loads(out)["uuid"]
    dry = wbengine("flow", "revert", flow, "--dry-run", "--json").json
    assert (dry["run"], dry["revert"]) == ([], ["reserve"])
    wbengine.fails(2, "pass --yes", "flow", "revert", flow)
    answer = wbengine("flow", "revert", flow, "--yes", "--reason", "ordered by mistake")
    assert (answer.code, answer.json["state"]) == (0, "REVERTED")
    assert done(home) == ["reserve", "-reserve"]
    assert "ordered by mistake" in wbengine("flow", "events", flow).out
    wbengine.fails(1, "no task can be reverted", "flow", "revert", flow, "--yes")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("resume",), "has already ended in SUCCESS"),
        (("retry",), "no task can be retried"),
        (("suspend",), "has ended in SUCCESS: there is nothing to suspend"),
        (("cancel",), "has ended in SUCCESS: there is nothing to cancel"),
        (("resume", "--dry-run"), "has already ended in SUCCESS"),
    ],
)
def test_operation_that_the_flow_state_forbids_is_refused(
    command: tuple[str, ...], message: str, wbengine: Command
) -> None:
    flow = wbengine("flow", "run", ORDER).json["uuid"]
    wbengine.fails(1, message, "flow", command[0], flow, *command[1:])


def test_retry_without_the_module_of_the_flow_is_refused(wbengine: Command, home: Path) -> None:
    (home / "mine.py").write_text("from tests.cli.shop import order\nflow = order()\n")
    (home / "broken").touch()
    flow = wbengine("flow", "run", "mine:flow").json["uuid"]
    (home / "mine.py").unlink()
    del sys.modules["mine"]
    wbengine.fails(1, "cannot rebuild the flow: no module 'mine' found", "flow", "retry", flow)


def test_delete_requires_confirmation_and_deletes_flows(wbengine: Command) -> None:
    one, two = (wbengine("flow", "run", ORDER).json["uuid"] for _ in "ab")
    wbengine.fails(2, "pass --yes", "flow", "delete", one)
    assert wbengine("flow", "delete", one, "--dry-run").out.startswith("would delete 'order'")
    answer = wbengine("flow", "delete", one, two[:8], "--yes", "--json")
    assert answer.json["flows"] == [one, two]
    assert wbengine("flow", "list", "--json").json["flows"] == []
    wbengine.fails(66, f"Unknown flow '{one}'", "flow", "delete", one, "--yes")


def test_report_is_written_as_html(wbengine: Command, home: Path) -> None:
    assert wbengine("flow", "run", ORDER, "--report", "run.html").code == 0
    assert "<svg" in (home / "run.html").read_text()


def test_every_exit_code_occurs_in_the_tests() -> None:
    """The documented codes must occur in the tests of this folder."""
    documented = {int(line.split()[0]) for line in errors.TEXT.splitlines()[1:]}
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert {code for code in documented if str(code) not in text} == set()


def test_answer_error_requires_exactly_one_line() -> None:
    with pytest.raises(ValueError, match="too many"):
        _ = Answer(1, "", "one\ntwo\n").error


# Traces. ------------------------------------------------------------------------------------------


def test_run_is_traced_if_the_environment_requests_it(wbengine: Command) -> None:
    answer = wbengine.apart("flow", "run", ORDER, env={"OTEL_TRACES_EXPORTER": "console"})
    assert answer.code == 0 and answer.json["state"] == "SUCCESS"
    assert f'"wbengine.flow.uuid": "{answer.json["uuid"]}"' in answer.err


def test_missing_exporter_is_reported(wbengine: Command) -> None:
    answer = wbengine.apart("flow", "run", ORDER, env={"OTEL_TRACES_EXPORTER": "nonsense"})
    assert (answer.code, answer.out) == (2, "")
    assert "$OTEL_TRACES_EXPORTER must name an installed exporter, got 'nonsense'" in answer.error
