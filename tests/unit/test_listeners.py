"""Listeners: registration, output, stored data and errors."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from wbengine import exceptions, retry, states, storage, task
from wbengine.engines import _local
from wbengine.listeners import base, capturing, claims, printing, timing
from wbengine.listeners import logging as logging_listeners
from wbengine.patterns import linear_flow
from wbengine.persistence import models
from wbengine.types import failure as ft
from wbengine.types import notifier as nt


class Stage:
    """An engine whose notifications are sent by the test."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine if engine is not None else made()
        self.notifier = self.engine.notifier
        self.atom_notifier = self.engine.atom_notifier

    def meta(self, name: str) -> dict[str, Any]:
        return self.engine.storage.record(name).meta

    def task(self, state: str, name: str = "t", **details: Any) -> None:
        known = {"task_name": name, "task_uuid": "u", "old_state": "OLD"}
        self.atom_notifier.notify(state, {**known, **details})

    def retry(self, state: str, name: str = "r", **details: Any) -> None:
        known = {"retry_name": name, "retry_uuid": "u", "old_state": "OLD"}
        self.atom_notifier.notify(state, {**known, **details})

    def flow(self, state: str) -> None:
        details = {"engine": self, "flow_name": "f", "flow_uuid": "u", "old_state": "OLD"}
        self.notifier.notify(state, details)

    def all(self) -> None:
        self.flow("RUNNING")
        self.task("RUNNING")
        self.retry("SUCCESS")


def made() -> _local.SerialActionEngine:
    flow = linear_flow.Flow("f", retry=retry.Times(2, name="r"))
    for name, provides in (("t", "all"), ("token", ("password", "rest")), ("hidden", None)):
        flow.add(task.FunctorTask(lambda: None, name=name, provides=provides))
    engine = _local.SerialActionEngine(flow, models.FlowDetail("f"), None, {})
    engine.compile()
    engine.prepare()
    return engine


class FullDisk(storage.Storage):
    """Storage that cannot write metadata."""

    def update_atom_metadata(self, atom_name: str, update_with: Any) -> None:
        raise exceptions.StorageFailure("disk full")

    def update_flow_metadata(self, update_with: Any) -> None:
        raise exceptions.StorageFailure("disk full")


class OnFullDisk(_local.SerialActionEngine):
    @property
    def storage(self) -> storage.Storage:
        return FullDisk(models.FlowDetail("f"))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def failed(text: str = "boom") -> ft.Failure:
    try:
        raise ValueError(text)
    except ValueError:
        return ft.Failure()


def from_afar() -> ft.Failure:
    return ft.Failure.from_dict(failed().to_dict())


class Heard(base.Listener):
    def __init__(self, engine: Any, **options: Any) -> None:
        super().__init__(engine, **options)
        self.heard: list[tuple[str, str]] = []

    def _flow_receiver(self, state: str, details: dict[str, Any]) -> None:
        self.heard.append(("flow", state))

    def _task_receiver(self, state: str, details: dict[str, Any]) -> None:
        self.heard.append(("task", state))

    def _retry_receiver(self, state: str, details: dict[str, Any]) -> None:
        self.heard.append(("retry", state))


# Registration -------------------------------------------------------------------------------------


def test_listener_receives_all_events_while_registered(stage):
    listener = Heard(stage.engine)
    stage.all()
    with listener as entered:
        assert entered is listener
        stage.all()
    stage.all()
    assert listener.heard == [("flow", "RUNNING"), ("task", "RUNNING"), ("retry", "SUCCESS")]
    assert not stage.notifier.topics and not stage.atom_notifier.topics


def test_second_registration_has_no_effect(stage):
    listener = Heard(stage.engine)
    listener.register()
    listener.register()
    stage.task("RUNNING")
    listener.deregister()
    listener.deregister()
    stage.task("RUNNING")
    assert listener.heard == [("task", "RUNNING")]
    listener.register()
    stage.task("SUCCESS")
    assert listener.heard == [("task", "RUNNING"), ("task", "SUCCESS")]


def test_two_listeners_of_one_class_are_independent(stage):
    one, two = Heard(stage.engine), Heard(stage.engine)
    with one:
        with two:
            stage.task("RUNNING")
        stage.task("SUCCESS")
    assert one.heard == [("task", "RUNNING"), ("task", "SUCCESS")]
    assert two.heard == [("task", "RUNNING")]


@pytest.mark.parametrize(
    ("options", "heard"),
    [
        ({"task_listen_for": ["SUCCESS"]}, [("flow", "RUNNING"), ("retry", "SUCCESS")]),
        ({"flow_listen_for": None}, [("task", "RUNNING"), ("retry", "SUCCESS")]),
        ({"retry_listen_for": ()}, [("flow", "RUNNING"), ("task", "RUNNING")]),
        (
            {"task_listen_for": ["RUNNING", "RUNNING"], "flow_listen_for": ()},
            [("task", "RUNNING"), ("retry", "SUCCESS")],
        ),
    ], ids=['other-task-state', 'no-flows', 'no-retries', 'duplicate-state-no-flows'],
)  # fmt: skip
def test_listener_receives_only_requested_states(stage, options, heard):
    with Heard(stage.engine, **options) as listener:
        stage.all()
    assert listener.heard == heard


def test_receivers_not_overridden_are_not_registered(stage):
    class Flows(base.Listener):
        def _flow_receiver(self, state, details):
            pass

    with Flows(stage.engine), base.Listener(stage.engine):
        assert len(stage.notifier) == 1
        assert not stage.atom_notifier.topics


def test_failed_registration_leaves_no_callback(stage):
    stage.engine._notifier = nt.RestrictedNotifier(["RUNNING"], allow_any=False)
    with pytest.raises(ValueError, match="cannot be registered for event type"):
        Heard(stage.engine).register()
    assert not stage.atom_notifier.topics


def test_exception_of_listener_is_logged(stage, caplog):
    class Bad(base.Listener):
        def _task_receiver(self, state, details):
            raise RuntimeError("bad listener")

    with Bad(stage.engine), Heard(stage.engine) as other:
        stage.task("RUNNING")
    assert other.heard == [("task", "RUNNING")]
    assert "bad listener" in caplog.text


def test_error_in_deregister_does_not_hide_error_of_flow(stage, caplog):
    class Stuck(base.Listener):
        def deregister(self):
            raise RuntimeError("stuck")

    with pytest.raises(KeyError), Stuck(stage.engine):
        raise KeyError("of the flow")
    assert "stuck" in caplog.text and f"{stage.engine}" in caplog.text


# Dumping ----------------------------------------------------------------------------------------


class Dump(base.DumpingListener):
    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.lines: list[tuple[str, Any]] = []

    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        self.lines.append((message % args, kwargs.get("exc_info")))


def test_dump_lines_contain_name_and_both_states(stage):
    fail, afar = failed(), from_afar()
    with Dump(stage.engine) as dump:
        stage.flow("RUNNING")
        stage.task("RUNNING")
        stage.task("SUCCESS", result=5)
        stage.task("FAILURE", result=fail)
        stage.task("FAILURE", result=afar)
        stage.retry("RETRYING")
    ended = "into state '{}' from state 'OLD' with result '{}' (failure={})"
    boom = ended.format("FAILURE", "Failure: ValueError: boom", True)
    assert [text for text, _ in dump.lines] == [
        f"{stage.engine} has moved {words}"
        for words in (
            "flow 'f' (u) into state 'RUNNING' from state 'OLD'",
            "task 't' (u) into state 'RUNNING' from state 'OLD'",
            f"task 't' (u) {ended.format('SUCCESS', 5, False)}",
            f"task 't' (u) {boom}",
            f"task 't' (u) {boom}",
            "retry 'r' (u) into state 'RETRYING' from state 'OLD'",
        )
    ]
    infos = [info for _, info in dump.lines]
    assert infos[3][:2] == fail.exc_info[:2] and infos[:3] == [None] * 3 and infos[4:] == [None] * 2


@pytest.mark.parametrize("stderr", [False, True])
def test_printing_listener_prints_failure_with_traceback(stage, capsys, stderr):
    with printing.PrintingListener(stage.engine, stderr=stderr):
        stage.task("FAILURE", result=failed())
    said, silent = capsys.readouterr()
    if stderr:
        said, silent = silent, said
    assert said.startswith(f"{stage.engine} has moved task 't'") and not silent
    assert "Traceback" in said and said.endswith("ValueError: boom\n")


# Logging ----------------------------------------------------------------------------------------


def records(caplog: Any) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_logging_listener_uses_requested_level(stage, caplog):
    caplog.set_level(logging.DEBUG)
    with logging_listeners.LoggingListener(stage.engine, level=logging.INFO):
        stage.flow("RUNNING")
    assert records(caplog)[0][0] == logging.INFO
    assert caplog.records[0].name == "wbengine.listeners.logging"


def test_logger_argument_overrides_logger_of_class(stage, caplog):
    class Own(logging_listeners.LoggingListener):
        _LOGGER = logging.getLogger("of.the.class")

    caplog.set_level(logging.DEBUG)
    adapter = logging.LoggerAdapter(logging.getLogger("of.the.call"), {})
    with Own(stage.engine), Own(stage.engine, log=adapter):
        stage.flow("RUNNING")
    assert [record.name for record in caplog.records] == ["of.the.class", "of.the.call"]


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ("RUNNING", logging.DEBUG),
        ("REVERTING", logging.DEBUG),
        ("REVERTED", logging.WARNING),
        ("RETRYING", logging.WARNING),
        ("FAILURE", logging.WARNING),
    ],
)
def test_failure_and_revert_states_are_logged_as_warnings(stage, caplog, state, level):
    caplog.set_level(logging.DEBUG)
    with logging_listeners.DynamicLoggingListener(stage.engine):
        stage.task(state)
        stage.retry(state)
    who = f"(u) transitioned into state '{state}' from state 'OLD'"
    assert records(caplog) == [(level, f"Task 't' {who}"), (level, f"Retry 'r' {who}")]


def test_failed_and_reverted_flows_are_logged_at_failure_level(stage, caplog):
    caplog.set_level(logging.DEBUG)
    with logging_listeners.DynamicLoggingListener(stage.engine, failure_level=35, level=15):
        for state in ("RUNNING", "REVERTED", "FAILURE", "SUSPENDED"):
            stage.flow(state)
    assert [level for level, _ in records(caplog)] == [15, 35, 35, 15]


def test_logged_results_are_masked_and_hidden_as_requested(stage, caplog):
    caplog.set_level(logging.DEBUG)
    result = {"password": "secret", "deep": [{"password": "secret"}], "user": "me"}
    options = {"hide_inputs_outputs_of": ["hidden"], "mask_outputs_keys": ["password"]}
    with logging_listeners.DynamicLoggingListener(stage.engine, **options):
        stage.task("SUCCESS", result=result)
        stage.task("SUCCESS", "token", result=("secret", 2))
        stage.task("SUCCESS", "hidden", result="secret")
        stage.task("REVERTED", result=result)
        stage.task("SUCCESS", "workflow/1.0-step", result=result)
    assert "secret" not in caplog.text
    texts = [text for _, text in records(caplog)]
    masked = "{'password': '***', 'deep': [{'password': '***'}], 'user': 'me'}"
    assert texts[0].endswith(f"with result '{masked}'")
    assert texts[1].endswith("with result '['***', 2]'")
    assert texts[2].endswith("from state 'OLD'")
    assert texts[3].endswith(f"with result '{masked}'")
    assert texts[4].endswith(f"with result '{masked}'")
    assert result["password"] == "secret"


def test_result_is_not_formatted_if_level_is_disabled(stage, caplog):
    class Loud:
        def __str__(self):
            raise AssertionError("rendered")

    caplog.set_level(logging.INFO)
    with logging_listeners.DynamicLoggingListener(stage.engine):
        stage.task("REVERTED", result=Loud())
    assert records(caplog) == [
        (logging.WARNING, "Task 't' (u) transitioned into state 'REVERTED' from state 'OLD'")
    ]


@pytest.mark.parametrize("text", ["", "and so on"])
def test_custom_failure_formatter_is_used(stage, caplog, text):
    class Formatter:
        def format(self, fail, matcher):
            assert matcher(SimpleNamespace(item=SimpleNamespace(name="t")))
            assert not matcher(SimpleNamespace(item=SimpleNamespace(name="other")))
            return None, text

    caplog.set_level(logging.DEBUG)
    with logging_listeners.DynamicLoggingListener(stage.engine, fail_formatter=Formatter()):
        stage.task("FAILURE", result=failed())
    (record,) = caplog.records
    assert record.exc_info is None and record.levelno == logging.WARNING
    assert record.getMessage().endswith("from state 'OLD'" + (f"\n{text}" if text else ""))


def test_failure_is_logged_with_traceback_or_its_text(stage, caplog):
    caplog.set_level(logging.DEBUG)
    with logging_listeners.DynamicLoggingListener(stage.engine):
        stage.task("FAILURE", result=failed("here"))
        stage.task("FAILURE", result=from_afar())
    here, afar = caplog.records
    assert here.exc_info[0] is ValueError and "boom" not in here.getMessage()
    assert not afar.exc_info and "ValueError: boom" in afar.getMessage()
    assert "Traceback" in afar.getMessage()


# Timing -----------------------------------------------------------------------------------------


def test_duration_is_taken_from_worker_times_or_measured(stage):
    with timing.DurationListener(stage.engine):
        stage.flow("RUNNING")
        stage.task("RUNNING")
        stage.task("SUCCESS", result=1, started=100.0, ended=102.5)
        stage.task("RUNNING", "token")
        stage.task("FAILURE", "token", result=failed(), started=None, ended=None)
        stage.flow("SUCCESS")
    assert stage.meta("t") == {"duration": 2.5}
    assert 0 <= stage.meta("token")["duration"] < 5
    assert 0 <= stage.engine.storage.flow_meta["duration"] < 5


def test_clock_set_back_gives_no_negative_duration(stage):
    with timing.DurationListener(stage.engine):
        stage.task("RUNNING")
        stage.task("SUCCESS", result=1, started=100.0, ended=99.0)
    assert stage.meta("t") == {"duration": 0.0}


@pytest.mark.parametrize(("begin", "back"), [("RUNNING", "PENDING"), ("REVERTING", "SUCCESS")])
def test_task_that_returns_to_previous_state_has_no_duration(stage, caplog, begin, back):
    with timing.DurationListener(stage.engine):
        stage.task(begin)
        stage.task(back)
        stage.task("SUCCESS", "token", result=1)
    assert not stage.meta("t") and not stage.meta("token") and caplog.text == ""


def test_task_without_end_is_logged_as_warning(stage, caplog):
    with timing.DurationListener(stage.engine) as listener:
        stage.task("RUNNING")
    assert "1 task(s) did not enter" in caplog.text
    caplog.clear()
    with listener:
        pass
    assert caplog.text == ""


def test_printing_duration_listener_prints_start_and_duration(stage, capsys):
    said: list[str] = []
    for listener in (
        timing.PrintingDurationListener(stage.engine),
        timing.PrintingDurationListener(stage.engine, said.append),
    ):
        with listener:
            stage.task("RUNNING")
            stage.task("SUCCESS", result=1, started=1.0, ended=1.5)
    lines = ["'t' task started.", "It took task 't' 0.50 seconds to finish."]
    assert said == lines
    assert capsys.readouterr().out.splitlines() == lines
    assert stage.meta("t") == {"duration": 0.5}


def test_event_time_listener_stores_timestamps(stage):
    with timing.EventTimeListener(stage.engine):
        stage.all()
        stage.task("SUCCESS", result=1)
        stage.retry("RETRYING")
    assert sorted(stage.engine.storage.flow_meta) == ["RUNNING-timestamp"]
    assert sorted(stage.meta("t")) == ["RUNNING-timestamp", "SUCCESS-timestamp"]
    assert sorted(stage.meta("r")) == ["RETRYING-timestamp", "SUCCESS-timestamp"]
    assert abs(stage.meta("t")["RUNNING-timestamp"] - time.time()) < 60


@pytest.mark.parametrize("listener", [timing.EventTimeListener, timing.DurationListener])
def test_storage_failure_of_timing_listener_is_logged(caplog, listener):
    stage = Stage(OnFullDisk(linear_flow.Flow("f"), models.FlowDetail("f"), None, {}))
    with listener(stage.engine):
        for tell in (stage.flow, stage.task):
            tell("RUNNING")
            tell("SUCCESS", **({"result": 1} if tell == stage.task else {}))
    assert "cannot store" in caplog.text and "disk full" in caplog.text
    assert "failed for event" not in caplog.text


# Capturing --------------------------------------------------------------------------------------


def kinds(values: list[Any]) -> list[str]:
    return [kind for kind, _, _ in values]


def test_capture_listener_records_events(stage):
    with capturing.CaptureListener(stage.engine) as listener:
        stage.all()
    assert kinds(listener.values) == ["flow", "task", "retry"]
    assert listener.values[1][1:] == (
        "RUNNING",
        {"task_name": "t", "task_uuid": "u", "old_state": "OLD"},
    )


@pytest.mark.parametrize("kind", ["flow", "task", "retry"])
def test_capture_listener_skips_excluded_kinds_and_names(stage, kind):
    mine: list[Any] = ["before"]
    skips = {"flow": "skip_flows", "task": "skip_tasks", "retry": "skip_retries"}
    name = {"flow": "f", "task": "t", "retry": "r"}[kind]
    with (
        capturing.CaptureListener(stage.engine, values=mine, **{f"capture_{kind}": False}) as one,
        capturing.CaptureListener(stage.engine, **{skips[kind]: [name]}) as two,
    ):
        stage.all()
    assert one.values is mine and mine.pop(0) == "before"
    left = [each for each in ("flow", "task", "retry") if each != kind]
    assert kinds(mine) == left and kinds(two.values) == left


def test_capture_listener_uses_custom_format(stage):
    class Short(capturing.CaptureListener):
        @staticmethod
        def _format_capture(kind, state, details):
            return f"{kind} {state}"

    with Short(stage.engine) as listener:
        stage.all()
    assert listener.values == ["flow RUNNING", "task RUNNING", "retry SUCCESS"]


# Claims -----------------------------------------------------------------------------------------


class Board:
    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def find_owner(self, job: Any) -> Any:
        if isinstance(self.owner, Exception):
            raise self.owner
        return self.owner


@pytest.mark.parametrize(
    ("owner", "state", "lost"),
    [
        pytest.param("me", states.CLAIMED, False, id="owner-claimed"),
        pytest.param("me", states.COMPLETE, False, id="owner-complete"),
        pytest.param("you", states.CLAIMED, True, id="other-owner"),
        pytest.param(None, states.CLAIMED, True, id="no-owner"),
        pytest.param("me", states.UNCLAIMED, True, id="unclaimed"),
        pytest.param(exceptions.NotFound("gone"), states.CLAIMED, True, id="job-deleted"),
        pytest.param(exceptions.JobFailure("no board"), states.CLAIMED, True, id="board-failed"),
    ],
)
def test_engine_suspends_if_claim_of_job_is_lost(owner, state, lost):
    engine = made()
    job = SimpleNamespace(state=state)
    with claims.CheckingClaimListener(engine, job, Board(owner), "me"):
        engine.run()
    assert engine.storage.get_flow_state() == ("SUSPENDED" if lost else "SUCCESS")
    assert engine.storage.get_atom_state("hidden") == ("PENDING" if lost else "SUCCESS")


def test_custom_callback_is_called_if_claim_of_job_is_lost(stage):
    told: list[Any] = []
    job = SimpleNamespace(state=states.UNCLAIMED)
    with claims.CheckingClaimListener(
        stage.engine, job, Board("me"), "me", on_job_loss=lambda *args: told.append(args)
    ):
        stage.task("RUNNING")
    ((whose, state, details),) = told
    assert whose is stage.engine and state == "RUNNING" and details["task_name"] == "t"
    with pytest.raises(ValueError, match="callable"):
        claims.CheckingClaimListener(stage.engine, job, Board("me"), "me", on_job_loss="stop")


def test_failure_to_suspend_engine_is_logged(caplog):
    stage = Stage(
        _local.SerialActionEngine(linear_flow.Flow("f"), models.FlowDetail("f"), None, {})
    )
    job = SimpleNamespace(state=states.UNCLAIMED)
    with claims.CheckingClaimListener(stage.engine, job, Board("me"), "me"):
        stage.flow("RUNNING")
    assert "must be compiled" in caplog.text and "cannot suspend" in caplog.text
