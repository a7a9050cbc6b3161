"""Logs of tasks in all stores and on all kinds of engines."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.contract import places
from tests.support import logging_tasks as tasks
from tests.support import servers, workers
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, running, states
from wbengine._logs import captured_lines, stored_lines
from wbengine.dashboard import create_app
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.views import _logs
from wbengine.views.redaction import Redactor

SECRET = "s3cr3t-of-the-flow"


@pytest.fixture(params=["memory", "sqlite", "mysql", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[base.Backend]:
    with contextlib.ExitStack() as stack:
        conf: Any = "memory"
        if request.param != "memory":
            conf = stack.enter_context(places.place(request.param, tmp_path, database_servers))
        yield stack.enter_context(backends.backend(conf))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as made:
        yield made


def run(flow: Any, store: base.Backend, **options: Any) -> str:
    """Run a flow, ignore its failure, and return its uuid."""
    engine = engines.load(flow, backend=store, **options)
    with contextlib.suppress(RuntimeError, exceptions.WbengineException):
        engine.run()
    return str(engine.storage.flow_uuid)


def read(store: base.Backend, uuid: str, *which: Any) -> list[_logs.LogLine]:
    with contextlib.closing(store.get_connection()) as connection:
        return _logs.read(connection, uuid, *which, redactor=Redactor())


def texts(lines: list[_logs.LogLine]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for line in lines:
        found[line.task].append(line.text)
    return dict(found)


EXPECTED = {
    "talker": ["talker works with ***"],
    "async": ["async begins", "async in a thread"],
}
INPUTS = {"password": SECRET, "numbers": [3, 4, 5]}


def check(lines: list[_logs.LogLine]) -> None:
    found = texts(lines)
    items = {line.item: line.text for line in lines if line.task == "m"}
    assert items == {0: "doubling 3", 1: "doubling 4", 2: "doubling 5"}
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED
    assert found.keys() == {*EXPECTED, "m"}
    assert {line.logger for line in lines} == {"tests.logging_tasks"}


def test_logs_are_stored_in_every_store(store: base.Backend) -> None:
    check(read(store, run(tasks.flow(), store, inputs=INPUTS)))


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_logs_of_threads_and_child_processes_are_stored(kept: base.Backend, executor: str) -> None:
    uuid = run(tasks.flow(), kept, inputs=INPUTS, engine="parallel", executor=executor)
    check(read(kept, uuid))


@pytest.mark.parametrize("pool", ["--threads", "--processes"])
def test_logs_of_workers_are_stored(kept: base.Backend, pool: str, tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    arguments = ["--url", url, "--topic", "t", "--tasks", "tests.support.logging_tasks", pool, "2"]
    with workers.workers(tmp_path, *arguments):
        uuid = run(tasks.flow(), kept, inputs=INPUTS, engine="worker-based", url=url)
        check(read(kept, uuid))


def test_logs_of_reversions_and_exceptions_have_their_attempt(kept: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(tasks.Talker("talker"), tasks.Failing("failing"))
    uuid = run(flow, kept, inputs=INPUTS)
    lines = read(kept, uuid)
    assert [(line.task, line.attempt, line.level) for line in lines] == [
        ("talker", 1, "INFO"), ("failing", 1, "ERROR"), ("talker", 2, "WARNING"),
    ]  # fmt: skip
    assert lines[1].text.startswith("failing tried\nTraceback ")
    assert lines[1].text.endswith("ValueError: in vain")
    assert read(kept, uuid, "talker", 2) == lines[2:]
    with pytest.raises(exceptions.NotFound, match=r"unknown task 'taker' .*did you mean 'talker'"):
        read(kept, uuid, "taker")


def test_excessive_log_of_execution_keeps_its_first_lines(kept: base.Backend) -> None:
    uuid = run(linear_flow.Flow("f").add(tasks.Chatty("chatty")), kept)
    *lines, last = read(kept, uuid)
    assert [line.text.split()[1] for line in lines] == [str(n) for n in range(len(lines))]
    size = sum(len(line.text) + len(line.logger) for line in lines)
    assert stored_lines.MAX_CHARACTERS - 200 < size <= stored_lines.MAX_CHARACTERS
    assert last.text == f"{5000 - len(lines)} more lines are not stored"


def test_log_of_running_task_is_readable(kept: base.Backend) -> None:
    engine = engines.load(
        linear_flow.Flow("f").add(tasks.Forever("forever")), backend=kept, engine="parallel"
    )
    uuid = engine.storage.flow_uuid
    running = threading.Thread(target=run_quietly, args=(engine,))
    running.start()
    try:
        until(lambda: read(kept, uuid))
    finally:
        engine.cancel()
        running.join()


def run_quietly(engine: Any) -> None:
    with contextlib.suppress(exceptions.WbengineException):
        engine.run()


def test_logs_are_not_stored_with_keep_logs_false(kept: base.Backend) -> None:
    assert read(kept, run(tasks.flow(), kept, inputs=INPUTS, keep_logs=False)) == []


def test_log_of_flow_is_limited_and_marks_where_it_was_cut(
    kept: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to any number of executions, whatever a worker sends."""
    monkeypatch.setattr(stored_lines, "MAX_CHARACTERS_OF_FLOW", 2_000)
    names = [f"counting-{number}" for number in range(3)]
    uuid = run(linear_flow.Flow("f").add(*(tasks.Counting(name) for name in names)), kept)
    *lines, last = read(kept, uuid)
    assert 10 < len(lines) < 2_000 / 64
    assert {line.task for line in lines} == {"counting-0"}
    assert last.text.startswith("no more log lines are stored: the tasks of this flow logged")
    again = run(linear_flow.Flow("f").add(tasks.Counting("other")), kept)
    assert read(kept, again)[0].text == "0", "each flow has as much"


def test_logs_of_latest_attempts_are_stored(store: base.Backend) -> None:
    """The store keeps the latest `LOGGED_ATTEMPTS` attempts."""
    flow = linear_flow.Flow("f").add(tasks.Talker("talker"))
    uuid = run(flow, store, inputs=INPUTS)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        (chunk,) = connection.get_logs(uuid)
        for attempt in range(2, base.LOGGED_ATTEMPTS + 5):
            new = [chunk._replace(attempt=attempt)]
            connection.save_changes(detail, (), flow_row=False, logs=new)
        found = [kept.attempt for kept in connection.get_logs(uuid)]
    assert found == list(range(5, base.LOGGED_ATTEMPTS + 5))


def test_logs_of_a_repeated_write_are_returned_once(kept: base.Backend) -> None:
    """The connection was lost after the commit, so the write was repeated."""
    uuid = run(tasks.flow(), kept, inputs=INPUTS)
    with contextlib.closing(kept.get_connection()) as connection:
        chunks = connection.get_logs(uuid)
        connection.save_changes(
            connection.get_flow_details(uuid), (), flow_row=False, logs=chunks[-1:]
        )
        assert connection.get_logs(uuid) == chunks != []


def test_moved_and_imported_flows_keep_their_logs(store: base.Backend, tmp_path: Path) -> None:
    uuid = run(tasks.flow(), store, inputs=INPUTS)
    document = json.loads(json.dumps(operations.export(store, uuid)))
    with backends.backend("memory") as first, backends.backend(f"dir://{tmp_path}/new") as second:
        operations.import_flow(first, document)
        assert len(list(operations.move(store, second))) == 1
        assert read(first, uuid) == read(second, uuid) == read(store, uuid) != []


def test_logs_are_deleted_with_their_flow(store: base.Backend) -> None:
    uuid = run(tasks.flow(), store, inputs=INPUTS)
    with contextlib.closing(store.get_connection()) as connection:
        connection.destroy_flow(uuid)
        with pytest.raises(exceptions.NotFound):
            connection.get_logs(uuid)


def test_dashboard_shows_the_log_of_a_task(kept: base.Backend) -> None:
    uuid = run(tasks.flow(), kept, inputs=INPUTS)
    token = "a-token-of-some-length-0123456789"
    with TestClient(create_app(kept, token=token), base_url="http://127.0.0.1:8585") as client:
        client.get("/", params={"token": token})
        told = client.get(f"/api/v1/flows/{uuid}/logs", params={"task": "m"}).json()
        assert sorted(line["text"] for line in told["lines"]) == [
            "doubling 3", "doubling 4", "doubling 5",
        ]  # fmt: skip
        (atom,) = {line.uuid for line in read(kept, uuid, "talker")}
        page = client.get(f"/flows/{uuid}/atoms/{atom}").text
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "INFO talker works with ***" in text and SECRET not in page


def test_logs_are_stored_once_with_custom_log_record_factory(kept: base.Backend) -> None:
    """A factory that is set later calls that of wbengine."""
    captured_lines.capture()
    made: list[str] = []
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **options: Any) -> logging.LogRecord:
        record = before(*args, **options)
        made.append(record.getMessage())
        return record

    logging.setLogRecordFactory(factory)
    try:
        uuid = run(linear_flow.Flow("f").add(tasks.Talker("talker")), kept, inputs=INPUTS)
    finally:
        logging.setLogRecordFactory(before)
    assert made == [f"talker works with {SECRET}"]
    assert texts(read(kept, uuid)) == {"talker": ["talker works with ***"]}


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_log_of_hanging_task_is_stored(kept: base.Backend, executor: str) -> None:
    flow = linear_flow.Flow("f").add(tasks.Hanging("hanging"))
    options: Any = {"engine": "parallel", "executor": executor, "timelimit": (None, 3)}
    assert texts(read(kept, run(flow, kept, **options))) == {"hanging": ["asking the bank"]}


def test_logging_does_not_wait_for_store(tmp_path: Path) -> None:
    """Another process locks the file for more than a second while the task logs."""
    path = tmp_path / "flows.db"
    with backends.backend(f"sqlite:///{path}") as store:
        flow = linear_flow.Flow("f").add(tasks.Holding("holding"))
        uuid = run(flow, store, inputs={"path": str(path)})
        longest = read(store, uuid)[-1].text
    assert float(longest) < 0.5


def test_number_of_log_lines_is_limited(kept: base.Backend) -> None:
    uuid = run(linear_flow.Flow("f").add(tasks.Counting("counting")), kept)
    found = [line.text for line in read(kept, uuid)]
    numbers = list(map(str, range(stored_lines.MAX_LINES)))
    assert found == [*numbers, "500 more lines are not stored"]
    with contextlib.closing(kept.get_connection()) as connection:
        latest = _logs.read(connection, uuid, redactor=Redactor(), limit=2)
    assert [line.text for line in latest] == found[-2:]


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("nobody reads this")


def test_unencodable_log_lines_are_stored_escaped(
    kept: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(tasks.task.Task):
        def execute(self) -> None:
            tasks.LOG.info("nul \0 and a lone \ud800 surrogate")
            tasks.LOG.info("%d", "no number")
            tasks.LOG.info(Unprintable())
            tasks.LOG.info("why", exc_info=(1, 2, 3))  # type: ignore[arg-type]

    monkeypatch.setattr(tasks.LOG, "propagate", False)  # a console would not accept them either
    uuid = run(linear_flow.Flow("f").add(Odd("odd")), kept)
    assert list(map(ascii, texts(read(kept, uuid))["odd"])) == [
        r"'nul \x00 and a lone \ud800 surrogate'", "'%d'", "'<Unprintable>'",
        r"'why\n<exception that cannot be formatted>'",
    ]  # fmt: skip
    assert read_flow(kept, uuid).state == states.SUCCESS


class Flooding(tasks.task.Task):
    """Task that sends more log lines than a correct worker, as a compromised one can."""

    def execute(self) -> None:
        call = running.CURRENT.get()
        assert call is not None
        line = (1.0, "INFO", "flood", "x" * 1000)
        for _ in range(20):
            call.events(stored_lines.EVENT, {"lines": [line] * stored_lines.MAX_LINES})


def test_store_limits_log_of_task_whatever_worker_sends(kept: base.Backend) -> None:
    uuid = run(linear_flow.Flow("f").add(Flooding("flooding")), kept)
    size = sum(len(line.text) for line in read(kept, uuid))
    assert stored_lines.MAX_CHARACTERS < size < stored_lines.MAX_CHARACTERS_PER_ATTEMPT


def test_empty_log_lines_count_towards_limit() -> None:
    line = stored_lines.Line(1.0, "", "", "")
    allowance = stored_lines.LogAllowance("f")
    found = allowance.take(1, (line,) * 100_000)
    assert stored_lines.MAX_LINES < len(found) < 10 * stored_lines.MAX_LINES
    assert allowance.take(1, (line,)) == ()
    assert allowance.take(2, (line,)) == (line,)


def test_secret_arguments_that_the_record_omits_are_masked(
    kept: base.Backend,
) -> None:
    uuid = run(tasks.connecting("connecting"), kept)
    with contextlib.closing(kept.get_connection()) as connection:
        (chunk,) = connection.get_logs(uuid)
    (line,) = chunk.lines
    assert "hunter22" not in str(line) and "key-of-shop" not in str(line)
    assert line.text.endswith(" redis://:***@host ***")
