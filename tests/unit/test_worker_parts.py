"""Idle shutdown, failure handlers, control commands and log of a worker."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import fresh
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._logs import line_format
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import worker
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages.request_messages import RequestMessage
from wbengine.engines.worker_based._worker_side import describing, jobs, reporting
from wbengine.types.failure import Failure

CALLED: list[Any] = []


def remember(request: reporting.FailedRequest, *info: Any) -> None:
    CALLED.append(("remember", request, *info))


def stop(request: reporting.FailedRequest, *info: Any) -> bool:
    CALLED.append(("stop", request.id))
    return False


def falsy(request: reporting.FailedRequest, *info: Any) -> int:
    CALLED.append(("falsy", request.id))
    return 0


def broken(request: reporting.FailedRequest, *info: Any) -> None:
    CALLED.append(("broken", request.id))
    raise SystemExit("no")


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


def a_job() -> jobs.Job:
    headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 3, hd.WBE_ATTEMPT: 2, hd.ROOT_ID: "flow-1"}
    message = env.Envelope(
        "REQUEST", {"task_name": "id-1"}, correlation_id="id-1", reply_to="e", headers=headers
    )
    return jobs.Job(RequestMessage.from_message(message), None)


def failed(error: BaseException) -> invocation.Outcome:
    try:
        raise error
    except BaseException:
        return invocation.Outcome(Failure(), "w1", 10.0, 12.5)


# Failure handlers.


def test_handlers_are_called_in_order_until_one_returns_false(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports = reporting.Reports("w1", (remember, falsy, stop, broken))
    reports.ended(a_job(), failed(ValueError("secret\nof two lines")))
    (first, *others) = CALLED
    assert others == [("falsy", "id-1"), ("stop", "id-1")]
    _, request, kind, value, _ = first
    assert (request.id, request.epoch, request.attempt, request.flow) == ("id-1", 3, 2, "flow-1")
    assert (request.worker, request.started, request.ended) == ("w1", 10.0, 12.5)
    assert kind is ValueError and value.args == ("secret\nof two lines",)
    assert request.failure.check(ValueError)
    assert caplog.records == []  # The handler replaces the default log line.


def test_exception_of_a_handler_is_logged_and_the_next_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporting.Reports("w1", (broken, falsy)).ended(a_job(), failed(ValueError("two\nlines")))
    assert CALLED == [("broken", "id-1"), ("falsy", "id-1")]
    raised, last = caplog.records
    assert raised.levelno == logging.ERROR and "broken failed" in raised.getMessage()
    assert raised.exc_info is not None
    assert last.levelno == logging.WARNING
    assert "failed after 2.500 s: ValueError: two lines" in last.getMessage()


def test_group_is_logged_as_python_prints_it_with_masked_notes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "wbengine")
    member = KeyError("passphrase refused")
    member.add_note("by redis://u:passphrase@h")
    reporting.Reports("w1").ended(a_job(), failed(ExceptionGroup("g", [member])))
    text = caplog.records[-1].getMessage()
    assert "  +-+---------------- 1 ----------------\n" in text
    assert "    | KeyError: '*** refused'\n    | by redis://u:***@h\n" in text


def test_handlers_receive_none_for_a_failure_without_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = failed(KeyError("k")).value.to_dict()
    outcome = invocation.Outcome(Failure.from_dict(data))
    reporting.Reports("w1", (remember,)).ended(a_job(), outcome)
    assert CALLED[0][2:] == (None, None, None)
    assert CALLED[0][1].failure == outcome.value
    assert len(caplog.records) == 1


def test_start_and_end_of_each_task_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "wbengine")
    reports = reporting.Reports("w1")
    reports.started(a_job())
    reports.ended(a_job(), invocation.Outcome("a result", "w1", 1.0, 1.25))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "task 'id-1' of request id-1 (epoch 3) starts"),
        ("INFO", "task 'id-1' of request id-1 ended after 0.250 s"),
    ]


def test_handlers_are_found_by_name_or_passed_as_callables() -> None:
    name = f"{__name__}:stop"
    assert reporting.find_handlers([name, remember]) == (
        getattr(sys.modules[__name__], "stop"),  # noqa: B009
        remember,
    )
    with pytest.raises(ImportError, match="did you mean 'stop'"):
        reporting.find_handlers([f"{__name__}:stp"])
    with pytest.raises(ValueError, match="must be callable"):
        reporting.find_handlers([f"{__name__}:CALLED"])


# Idle shutdown.


def test_idle_shutdown_happens_after_the_idle_time() -> None:
    mine = worker.IdleShutdown(5.0, 0.0)
    assert not any(mine.is_over(float(now), busy=False) for now in range(5))
    mine.since = 4.0
    assert not any(mine.is_over(float(now), busy=False) for now in range(5, 9))
    assert mine.is_over(9.0, busy=False)
    assert mine.since == 4.0


def test_work_and_outages_do_not_count_as_idle_time() -> None:
    mine = worker.IdleShutdown(5.0, 0.0)
    for now in range(20):
        assert not mine.is_over(float(now), busy=True)
    # During the outage, no request could arrive.
    assert not mine.is_over(100.0, busy=False)
    for now in range(101, 105):
        assert not mine.is_over(float(now), busy=False)
    assert mine.is_over(105.0, busy=False)


def test_idle_shutdown_of_none_never_happens() -> None:
    mine = worker.IdleShutdown(None, 0.0)
    assert not any(mine.is_over(float(now), busy=False) for now in range(0, 1000, 2))


# Control commands.


@pytest.mark.parametrize("what", worker_commands.CONTROL_ACTIONS)
@pytest.mark.parametrize("worker", [None, "host-1-abc"])
def test_control_command_is_valid_and_addressed(what: Any, worker: str | None) -> None:
    made = worker_commands.control(what, worker)
    worker_commands.SCHEMAS[worker_commands.CONTROL].check(made.body)
    assert made.body["do"] == what
    assert made.routing_key == (worker or env.ALL_WORKERS)
    assert made.type == worker_commands.CONTROL


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"do": "die"}, {"do": ["drain"]}, {"do": None}, 7],
    ids=["none", "list", "empty", "unknown", "list_command", "null", "number"],
)
def test_malformed_control_command_is_rejected(body: Any) -> None:
    with pytest.raises(exc.InvalidFormat):
        worker_commands.SCHEMAS[worker_commands.CONTROL].check(body)


def test_control_command_with_invalid_arguments_is_rejected() -> None:
    with pytest.raises(ValueError, match="did you mean 'suspend'"):
        worker_commands.control("suspnd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="worker"):
        worker_commands.control("drain", "../w")


# Names, banner and log lines.


def test_queue_name_depends_on_exchange_topic_and_tasks() -> None:
    one = env.queue_name("x", "t", ["a", "b"])
    assert one == env.queue_name("x", "t", ["b", "a"])
    assert one.startswith("t.")
    others = [("y", "t", ["a", "b"]), ("x", "u", ["a", "b"]), ("x", "t", ["a"])]
    assert len({one, *(env.queue_name(*other) for other in others)}) == 4
    assert len(env.queue_name("x", "t" * 120, ["a"])) <= 120


def test_banner_lists_five_tasks_and_the_number_of_others() -> None:
    text = describing.banner("w1", "memory://", "x", ["t", "u"], [f"m.T{n}" for n in range(7)], "4")
    assert "topics    t, u" in text
    assert "m.T4 and 2 more" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "stream", "environment", "coloured"),
    [
        pytest.param("auto", Terminal(), {}, True, id="terminal"),
        pytest.param("auto", io.StringIO(), {}, False, id="pipe"),
        pytest.param("auto", None, {}, False, id="no_stream"),
        pytest.param("auto", Terminal(), {"NO_COLOR": "1"}, False, id="no_color"),
        pytest.param("auto", Terminal(), {"NO_COLOR": ""}, True, id="empty_no_color"),
        pytest.param("auto", io.StringIO(), {"FORCE_COLOR": "1"}, True, id="force_color"),
        pytest.param("auto", Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, id="both"),
        pytest.param("auto", Terminal(), {"TERM": "dumb"}, False, id="dumb_terminal"),
        pytest.param("always", io.StringIO(), {"NO_COLOR": "1"}, True, id="always"),
        pytest.param("never", Terminal(), {"FORCE_COLOR": "1"}, False, id="never"),
    ],
)
def test_colour_choice_respects_stream_and_environment(
    choice: str, stream: Any, environment: dict[str, str], coloured: bool
) -> None:
    assert line_format.wants_colour(choice, stream, environment) == coloured


def test_log_lines_are_coloured_by_level() -> None:
    def line(level: int, colour: bool) -> str:
        record = logging.LogRecord("wbengine.x", level, "f", 1, "it %s", ("is",), None)
        return line_format.Lines(colour).format(record)

    assert line(logging.ERROR, True).startswith("\x1b[31m")
    assert line(logging.WARNING, True).endswith("it is\x1b[0m")
    for level in (logging.DEBUG, logging.INFO, logging.ERROR, 3):
        assert "\x1b" not in line(level, False)
    assert "\x1b" not in line(logging.INFO, True)


@contextlib.contextmanager
def command_log() -> Iterator[io.StringIO]:
    """Capture the log of a command, as in its own process."""
    root, stream = logging.getLogger(), io.StringIO()
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root, "handlers", [])
        patch.setattr(line_format, "_installed", None)
        for name in ("logThreads", "logProcesses", "logMultiprocessing", "raiseExceptions"):
            patch.setattr(logging, name, False)
        try:
            with contextlib.redirect_stderr(stream):
                line_format.install("info", "never")
                yield stream
        finally:
            root.setLevel(level)


def test_batched_success_lines_equal_single_lines() -> None:
    reports = reporting.Reports("w1")
    outcome = invocation.Outcome("a result", "w1", 1.0, 1.25)
    with command_log() as log:
        reports.ended(a_job(), outcome)
        reports.ended(a_job(), outcome)
        assert log.getvalue() == ""
        moment = reports.unlogged[0][0]
        reports.flush()
        reports.flush()
    first, second = log.getvalue().splitlines(keepends=True)
    assert first[23:] == second[23:]
    record = logging.makeLogRecord(
        {
            "name": reporting.LOG.name,
            "levelname": "INFO",
            "levelno": logging.INFO,
            "msg": "task 'id-1' of request id-1 ended after 0.250 s",
            "created": moment,
            "msecs": moment % 1 * 1000,
        }
    )
    assert first == line_format.Lines().format(record) + "\n"


def test_failure_is_logged_after_earlier_successes() -> None:
    reports = reporting.Reports("w1")
    with command_log() as log:
        reports.ended(a_job(), invocation.Outcome("a result"))
        reports.ended(a_job(), failed(ValueError("no")))
    first, second = log.getvalue().splitlines()
    assert " INFO " in first and first.endswith("task 'id-1' of request id-1 ended")
    assert " WARNING " in second


@pytest.mark.parametrize("where", ["", "wbengine", reporting.LOG.name])
def test_other_log_handlers_receive_each_record(where: str) -> None:
    reports = reporting.Reports("w1")
    heard: list[logging.LogRecord] = []

    class Other(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record)

    other = Other()
    with command_log() as log:
        logging.getLogger(where).addHandler(other)
        try:
            reports.ended(a_job(), invocation.Outcome(1))
            ((moment, _),) = reports.unlogged
            reports.flush()
        finally:
            logging.getLogger(where).removeHandler(other)
    (record,) = heard
    assert (record.msg, record.args) == (reporting._ENDED, ("id-1", "id-1", ""))
    assert (record.created, record.levelno) == (moment, logging.INFO)
    assert log.getvalue().endswith("task 'id-1' of request id-1 ended\n")


def test_unwritable_log_does_not_raise() -> None:
    reports = reporting.Reports("w1")
    with command_log() as log:
        log.close()
        reports.ended(a_job(), invocation.Outcome(1))
        reports.flush()
    assert not reports.unlogged


def test_warnings_are_printed_if_logging_is_not_configured() -> None:
    """As for other libraries, Python writes them to stderr."""
    program = "from wbengine import logging; logging.getLogger('wbengine.x').warning('look')"
    ended = fresh.run(program)
    assert (ended.stdout, ended.stderr) == ("", "look\n")


def test_secrets_of_a_request_are_masked_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments with secret names are masked wherever they occur, and so are secret patterns."""
    caplog.set_level(logging.DEBUG, "wbengine")
    job = a_job()
    given = {"login": {"password": "nightingale"}, "count": 3}
    job.unit = pr.WorkUnit("c", "t", "execute", given, None, {})
    said = "3: nightingale was refused by redis://u:passphrase@h with token=abcdef"
    reporting.Reports("w1").ended(job, failed(ValueError(said)))
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "3: *** was refused by redis://u:***@h with token=***" in told
    assert "Traceback" in told or "ValueError" in told
    for secret in ("nightingale", "passphrase", "abcdef"):
        assert secret not in told
