"""Submitted flows, their conductors and their handles."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.seams import stores as stored_in
from tests.support import conducted, declining, python, servers
from tests.support.reading import flow_uuids, read_flow
from tests.support.requested import conducting
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.conductors import backends as conductors
from wbengine.jobs import _stored
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _commands
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence

HERE = "tests.support.conducted"


#: Mark of tests for MySQL, too, because their locks differ between dialects.
dialects = pytest.mark.parametrize("uri", [*stored_in.DURABLE, "mysql"], indirect=True)


@pytest.fixture
def local(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


def test_submitted_flow_is_run_by_a_conductor(store: persistence.Backend) -> None:
    handle = engines.submit(f"{HERE}:greeting", backend=store, inputs={"name": "Ada"})
    assert handle.state == states.PENDING
    assert not handle.wait(0)
    with conducting(store) as board:
        assert handle.result(60) == {"name": "Ada", "greeting": "hello Ada"}
        assert handle.wait(0) and handle.state == states.SUCCESS
        until(lambda: board.job_count == 0)
        again = engines.handle(handle.id, backend=store)
        assert asyncio.run(_awaited(again)) == handle.result()


@pytest.mark.slow
@dialects
def test_many_flows_are_submitted_at_once(store: persistence.Backend) -> None:
    names = [f"n{number}" for number in range(30)]
    handles = engines.submit_many(
        f"{HERE}:greeting", [{"name": name} for name in names], backend=store, tags={"many": "1"}
    )
    assert sorted(flow_uuids(store)) == sorted(handle.id for handle in handles)
    with conducting(store) as board:
        for name, handle in zip(names, handles, strict=True):
            assert handle.result(60)["greeting"] == f"hello {name}"
        until(lambda: board.job_count == 0)


def test_submit_many_saves_all_flows_or_none(
    store: persistence.Backend, monkeypatch: pytest.MonkeyPatch, board: impl_sql.SQLJobBoard
) -> None:
    inputs: list[dict[str, Any]] = [{"name": "Ada"}, {}]
    with pytest.raises(exceptions.MissingDependencies):
        engines.submit_many(f"{HERE}:greeting", inputs, backend=store)

    def fail(*_: object) -> None:
        raise RuntimeError("it died")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(impl_sql.SQLJobBoard, "_insert", fail)
        engines.submit_many(f"{HERE}:greeting", inputs[:1] * 3, backend=store, board=board)
    assert flow_uuids(store) == [] and board.job_count == 0
    assert engines.submit_many(f"{HERE}:greeting", [], backend=store, board=board) == []
    later = engines.submit_many(
        f"{HERE}:greeting", inputs[:1] * 3, backend=store, board=board, eta=3600, priority="low"
    )
    assert board.job_count == 3 and next(board.iterjobs(only_unclaimed=True), None) is None
    assert {job.uuid for job in board.iterjobs()} == {handle.id for handle in later}
    assert {job.priority for job in board.iterjobs()} == {jobs.JobPriority.LOW}


async def _awaited(handle: engines.FlowHandle) -> dict[str, Any]:
    return await handle


def test_submitted_flow_has_its_name_and_tags_and_priority(local: str) -> None:
    options = {"name": "n", "tags": {"team": "billing"}, "priority": "very_high"}
    handle = engines.submit(conducted.plain, backend=local, inputs=_NONE, **options)
    with stores.backend(local) as store, contextlib.closing(store.get_connection()) as connection:
        [row] = connection.list_flows(tags={"team": "billing"}).flows
        assert (row.uuid, row.name) == (handle.id, "n")
        with boards.backend("b", "sql", persistence=store) as board:
            [job] = board.iterjobs()
            assert job.priority is jobs.JobPriority.VERY_HIGH


def test_flow_object_can_be_submitted_by_its_name(local: str) -> None:
    with stores.backend(local) as store, conducting(store):
        handle = engines.submit(f"{HERE}:GREETING", backend=store, inputs={"name": "Bob"})
        assert handle.result(60)["greeting"] == "hello Bob"


def test_handle_raises_failure_of_flow(local: str, tmp_path: Path) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x", "kind": "value"}
    with stores.backend(local) as store, conducting(store):
        handle = engines.submit(conducted.failing, backend=store, inputs=inputs)
        with pytest.raises(ValueError, match="oops"):
            handle.result(60)
        with pytest.raises(ValueError, match="oops"):
            asyncio.run(_awaited(handle))
        assert handle.state == states.REVERTED


@pytest.mark.parametrize("kind", declining.KINDS)
@pytest.mark.parametrize("factory", [conducted.declined, conducted.declined_step])
def test_handle_raises_class_of_the_module_of_the_task(factory: Any, kind: str, local: str) -> None:
    """The workflow is in another module."""
    expected = declining.exception(kind)
    with stores.backend(local) as store, conducting(store):
        handle = engines.submit(factory, backend=store, inputs={"kind": kind})
        with pytest.raises(Exception) as raised:
            handle.result(60)
    error = raised.value
    wanted = declining.Declined if kind == "foreign" else type(expected)
    assert isinstance(error, wanted) and str(error) == str(expected)
    assert getattr(error, "__notes__", []) == getattr(expected, "__notes__", [])
    if kind in ("arguments", "keyword", "foreign"):
        assert error.args == expected.args
    if kind == "cause":
        assert isinstance(error.__cause__, declining.Declined)
    if isinstance(error, ExceptionGroup) and isinstance(expected, ExceptionGroup):
        pairs = zip(error.exceptions, expected.exceptions, strict=True)
        assert all(isinstance(one, type(other)) for one, other in pairs)
    assert declining.Foreign.__module__ not in sys.modules


def test_exception_of_a_step_keeps_its_class_as_cause(local: str) -> None:
    with stores.backend(local) as store, conducting(store):
        handle = engines.submit(conducted.declined_cause, backend=store, inputs={"kind": "foreign"})
        with pytest.raises(RuntimeError, match="order failed") as raised:
            handle.result(60)
    assert isinstance(raised.value.__cause__, declining.Declined)


@pytest.mark.parametrize("how", ["delete", "prune", "destroy_logbook", "clear_all"])
def test_deleted_flow_leaves_no_job(how: str, local: str, tmp_path: Path) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x"}
    with stores.backend(local) as store:
        board = impl_sql.SQLJobBoard("b", persistence=store)
        board.connect()
        one, _ = engines.submit_many(conducted.plain, [inputs] * 2, backend=store, board=board)
        with contextlib.closing(store.get_connection()) as connection:
            row = next(row for row in connection.list_flows().flows if row.uuid == one.id)
            if how == "delete":
                operations.delete(store, one.id)
            elif how == "prune":
                next(operations.prune(store, before=time.time() + 60, states=["PENDING"]))
            elif how == "destroy_logbook":
                connection.destroy_logbook(row.book_uuid)
            else:
                connection.clear_all()
        assert board.job_count == (0 if how == "clear_all" else 1)


def test_submitted_flow_that_another_engine_ended_is_not_run_again(
    local: str, tmp_path: Path
) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x", "kind": "value"}
    with stores.backend(local) as store:
        handle = engines.submit(conducted.failing, backend=store, inputs=inputs)
        detail = read_flow(store, handle.id)
        with pytest.raises(ValueError, match="oops"):
            engines.load_from_detail(detail, backend=store).run()
        before = conducted.notes(tmp_path)
        with conducting(store) as board:
            until(lambda: board.job_count == 0)
        assert conducted.notes(tmp_path) == before and handle.state == states.REVERTED


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_conductor_is_woken_by_a_submission(
    kind: str,
    is_cut: bool,
    local: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Polling is disabled, and the connection may have been lost before."""
    monkeypatch.setattr(_stored, "_RELISTEN_SECONDS", 0.1)
    server, url = (request.getfixturevalue(f"{kind}_{what}") for what in ("server", "url"))
    place, where = (url, "sql") if kind == "postgresql" else (local, str(url))
    with (
        stores.backend(place) as store,
        boards.backend("b", where, persistence=store) as board,
        conducted.running(
            conductors.fetch("nonblocking", "c", board, persistence=store, wait_timeout=1000)
        ),
    ):
        for name in ("Ada", "Bob"):
            handle = engines.submit(
                f"{HERE}:greeting", backend=store, board=board, inputs={"name": name}
            )
            assert handle.result(60)["greeting"] == f"hello {name}"
            until(lambda: board.job_count == 0)
            if is_cut and kind == "postgresql":
                server.cut(url)
            elif is_cut:
                server.kill()
                server.start()


# eta.


@pytest.mark.parametrize("form", ["seconds", "moment"])
def test_flow_with_eta_is_not_claimed_before(
    store: persistence.Backend, form: str, board: impl_sql.SQLJobBoard
) -> None:
    def submit(seconds: float) -> engines.FlowHandle:
        moment = datetime.now(UTC) + timedelta(seconds=seconds)
        eta = moment if form == "moment" else seconds
        inputs = {"name": "Ada"}
        return engines.submit(f"{HERE}:greeting", backend=store, inputs=inputs, eta=eta)

    later = submit(950)
    [job] = board.iterjobs()
    assert not list(board.iterjobs(only_unclaimed=True))
    assert board.find_owner(job) is None and job.state == states.UNCLAIMED
    assert job.expires_in() is jobs.UnknownExpire.KEY_NOT_FOUND
    assert not job.extend_expiry(2000)
    with pytest.raises(exceptions.UnclaimableJob, match=r"is not due for 9[45]\d\.\d more s"):
        board.claim(job, "me")
    began = time.time()
    soon = submit(1)
    with conducting(store):
        soon.result(60)
    assert time.time() - began >= 1
    assert later.state == states.PENDING


def test_flow_with_eta_that_is_cancelled_ends_at_once(store: persistence.Backend) -> None:
    """Its unique key is free afterwards."""

    def submit() -> engines.FlowHandle:
        inputs = {"name": "Ada"}
        return engines.submit(f"{HERE}:greeting", backend=store, inputs=inputs, eta=950, unique="k")

    first = submit()
    assert submit().id == first.id
    assert first.cancel("not wanted")
    with conducting(store):
        assert first.wait(30) and first.state == states.REVERTED
    assert submit().id != first.id


def test_search_for_claimable_jobs_uses_index(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    """This includes a database without statistics of the table."""
    explain = {"sqlite": "EXPLAIN QUERY PLAN", "mysql": "EXPLAIN", "postgresql": "EXPLAIN"}
    rows = [{"uuid": f"u{number}", "when": 4e9 + number} for number in range(2000)]
    engine: sa.Engine = store.engine  # type: ignore[attr-defined]
    with engine.begin() as raw:
        raw.execute(
            sa.text(
                "INSERT INTO wbe_jobs (uuid, board, name, priority, created, updated,"
                " not_before) VALUES (:uuid, 'default', 'n', 2, 0, 0, :when)"
            ),
            rows,
        )
    parameters = {"board": "default", "priority": -1, "id": 0, "limit": 16}
    queries = [board._statements.unclaimed.text, board._statements.due.text]
    if engine.dialect.name == "sqlite":
        queries.append(board._statements.next_due)
    for query in queries:
        with engine.connect() as raw:
            plan = raw.execute(sa.text(f"{explain[engine.dialect.name]} {query}"), parameters)
            words = " ".join(str(each) for row in plan for each in row)
        assert "ix_wbe_jobs_ready" in words and "temp b-tree" not in words.lower()
        assert "Filter: (not_before" not in words and "filesort" not in words, words
    job = board.post("now")
    assert [each.uuid for each in board.iterjobs(only_unclaimed=True)] == [job.uuid]


_NONE = {"folder": "", "mark": ""}


# unique.


@dialects
def test_unique_key_gives_the_unfinished_flow(store: persistence.Backend, tmp_path: Path) -> None:
    def submit(key: str) -> engines.FlowHandle:
        inputs = {"folder": str(tmp_path), "mark": key}
        return engines.submit(conducted.plain, backend=store, inputs=inputs, unique=key)

    first, same, other = submit("a"), submit("a"), submit("A")
    assert first.id == same.id != other.id
    assert len(flow_uuids(store)) == 2
    with conducting(store):
        assert same.wait(60) and other.wait(60)
        later = submit("a")
        assert later.id != first.id
        assert later.wait(60)
    assert len(conducted.notes(tmp_path)) == 6
    with contextlib.closing(store.get_connection()) as connection:
        connection.destroy_flow(later.id)
    assert submit("a").id not in (first.id, later.id)


@pytest.mark.slow
def test_concurrent_submits_with_one_key_create_one_flow(uri: str, tmp_path: Path) -> None:
    with stores.backend(uri):
        pass  # creates the tables
    program = (
        "import sys, time\n"
        "from wbengine import engines\n"
        "from wbengine.persistence import backends\n"
        "from tests.support import conducted\n"
        f"store = backends.fetch({uri!r})\n"
        "engines.submit(conducted.plain, backend=store, inputs=dict(folder='', mark=''))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for key in range(20):\n"
        "    print(engines.submit(conducted.plain, backend=store, unique=str(key),\n"
        "          inputs=dict(folder='', mark='')).id)\n"
    )
    command = ["-c", program]
    racing = [
        python.start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=servers.REPOSITORY,
        )
        for _ in range(3)
    ]  # fmt: skip
    for process in racing:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in racing:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120)[0].split() for process in racing]
    assert len(printed[0]) == 20 and printed[0] == printed[1] == printed[2]
    with stores.backend(uri) as store, boards.backend("b", "sql", persistence=store) as board:
        assert board.job_count == len(racing) + 20 == len(flow_uuids(store))


def test_killed_program_leaves_no_flow_without_its_job(local: str) -> None:
    program = (
        "from wbengine import engines\n"
        "from wbengine.persistence import backends\n"
        f"store = backends.fetch({local!r})\n"
        "while True:\n"
        f"    engines.submit('{HERE}:greeting', backend=store, inputs=dict(name=''))\n"
        "    print('submitted', flush=True)\n"
    )
    command = ["-c", program]
    with stores.backend(local) as store, boards.backend("b", "sql", persistence=store) as board:
        programs = [
            python.start(command, cwd=servers.REPOSITORY, stdout=subprocess.PIPE) for _ in range(6)
        ]
        for process in programs:
            with process:
                assert process.stdout is not None and process.stdout.readline()
                process.kill()
        flows = {*flow_uuids(store, limit=100_000)}
        assert flows == {job.uuid for job in board.iterjobs()} and len(flows) >= len(programs)


# Cancelling.


def test_unstarted_flow_is_cancelled(store: persistence.Backend, tmp_path: Path) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x"}
    handle = engines.submit(conducted.plain, backend=store, inputs=inputs)
    assert handle.cancel("too late")
    with conducting(store), pytest.raises(exceptions.Cancelled, match="too late"):
        handle.result(60)
    assert handle.state == states.REVERTED and not handle.cancel()
    assert not conducted.notes(tmp_path)


def test_running_flow_is_cancelled(
    local: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "wbengine.engines")
    conducted.BEGUN["c"], conducted.GATES["c"] = threading.Event(), threading.Event()
    inputs = {"folder": str(tmp_path), "mark": "c"}
    with stores.backend(local) as store, conducting(store):
        handle = engines.submit(conducted.gated, backend=store, inputs=inputs)
        assert conducted.BEGUN["c"].wait(60)
        assert handle.cancel("stop it")
        until(lambda: "is being cancelled" in caplog.text)  # the engine has received it
        conducted.GATES["c"].set()
        with pytest.raises(exceptions.Cancelled, match="stop it"):
            handle.result(60)
    assert "c undone before" in conducted.notes(tmp_path)


# Invalid submissions.


_ELSEWHERE = {"board": "sql", "connection": "sqlite://"}


INVALID_SUBMISSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "lambda": ({"flow_factory": lambda: 1}, "cannot be imported by name"),
    "misspelt name": ({"flow_factory": f"{HERE}:plian"}, "did you mean 'plain'"),
    "not importable": ({"flow_factory": "__main__.__doc__"}, "other processes cannot import"),
    "missing input": ({"inputs": {"folder": ""}}, "requires 'mark'"),
    "unencodable input": ({"inputs": {"folder": "", "mark": object()}}, "inputs.*mark"),
    "priority": ({"priority": "hgih"}, "got 'hgih' .*'HIGH'"),
    "empty unique": ({"unique": ""}, "unique must be 1 to 255 printable characters"),
    "blank unique": ({"unique": " "}, "without surrounding blanks, got ' '"),
    "unique with line end": ({"unique": "k1\n"}, r"got 'k1\\n'"),
    "unique with NUL": ({"unique": "a\0b"}, r"got 'a\\x00b'"),
    "unique with surrogate": ({"unique": "\ud800"}, r"got '\\ud800'"),
    "eta without time zone": ({"eta": datetime(2030, 1, 1)}, "must have a time zone"),
    "negative eta": ({"eta": -1}, "eta must be a number of 0 or more, got -1"),
    "eta in milliseconds": ({"eta": 1.79e12}, "eta must be at most 100000000000 seconds, got 179"),
    "memory store": ({"backend": "memory"}, "board= is required"),
    "unique elsewhere": (
        {"board": _ELSEWHERE, "unique": "x"},
        "unique= requires a flow and a job in",
    ),
    "eta elsewhere": ({"board": _ELSEWHERE, "eta": 1}, "eta= requires a flow and a job in"),
}


@pytest.mark.parametrize("name", INVALID_SUBMISSIONS)
def test_invalid_submission_is_refused_and_saves_nothing(local: str, name: str) -> None:
    options, words = INVALID_SUBMISSIONS[name]
    kind = {
        "missing input": exceptions.MissingDependencies,
        "unencodable input": exceptions.NotEncodable,
    }.get(name, ValueError)
    with stores.backend(local) as store:
        given = {"flow_factory": conducted.plain, "backend": store, "inputs": _NONE, **options}
        with pytest.raises(kind, match=words):
            engines.submit(**given)
        assert not flow_uuids(store)
        with pytest.raises(exceptions.NotFound):
            engines.handle("no-such-flow", backend=store)


def test_flow_and_job_can_be_in_two_stores(local: str, tmp_path: Path) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x"}
    with (
        stores.backend(local) as store,
        boards.backend("b", f"sqlite:///{tmp_path}/jobs.db", persistence=store) as board,
    ):
        handle = engines.submit(conducted.plain, backend=store, board=board, inputs=inputs)
        conductors.fetch("blocking", "c", board, persistence=store).run(max_dispatches=1)
        assert handle.wait(0)


def test_board_of_another_store_is_refused(local: str, tmp_path: Path) -> None:
    """Conductors of that board would not find the flow."""
    inputs = {"folder": str(tmp_path), "mark": "x"}
    with (
        stores.backend(local) as store,
        stores.backend(f"sqlite:///{tmp_path}/other.db") as other,
        boards.backend("b", "sql", persistence=other) as board,
    ):
        with pytest.raises(ValueError, match=r"backend is .*flows\.db.*would not find the flow"):
            engines.submit(conducted.plain, backend=store, board=board, inputs=inputs)
        with pytest.raises(ValueError, match="a new, unconnected board"):
            engines.submit(conducted.plain, backend=store, board="memory", inputs=inputs)
        assert not flow_uuids(store) and not flow_uuids(other)
        # Two backend objects of one database are accepted.
        handle = engines.submit(conducted.plain, backend=local, board="sql", inputs=inputs)
        assert flow_uuids(store) == [handle.id]


def _trashed(board: jobs.JobBoard) -> None:
    [job] = board.iterjobs()
    board.claim(job, "me")
    board.trash(job, "me")


def test_handle_raises_if_job_of_flow_was_deleted(local: str) -> None:
    with stores.backend(local) as store, boards.backend("b", "sql", persistence=store) as board:
        handle = engines.submit(conducted.plain, backend=store, inputs=_NONE)
        _trashed(board)
        for each in (handle, engines.handle(handle.id, backend=store)):
            with pytest.raises(exceptions.JobFailure, match=r"PENDING, and its job was deleted"):
                each.wait(60)


def test_handle_of_suspended_flow_keeps_waiting(
    local: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "wbengine.engines")
    conducted.BEGUN["s"], conducted.GATES["s"] = threading.Event(), threading.Event()
    inputs = {"folder": str(tmp_path), "mark": "s"}
    with stores.backend(local) as store, conducting(store) as board:
        handle = engines.submit(conducted.gated, backend=store, inputs=inputs)
        assert conducted.BEGUN["s"].wait(60)
        with contextlib.closing(store.get_connection()) as connection:
            connection.send_command(handle.id, _commands.FlowCommand("suspend", "hold it"))
        until(lambda: "is being suspended" in caplog.text)  # the engine has received it
        conducted.GATES["s"].set()
        until(lambda: board.job_count == 0)
        assert handle.state == states.SUSPENDED and not handle.wait(2)


def test_submit_with_key_of_trashed_job_posts_job_again(local: str) -> None:
    with stores.backend(local) as store, boards.backend("b", "sql", persistence=store) as board:
        handle = engines.submit(conducted.plain, backend=store, inputs=_NONE, unique="k")
        _trashed(board)
        assert board.job_count == 0
        again = engines.submit(conducted.plain, backend=store, inputs=_NONE, unique="k")
        assert again.id == handle.id and board.job_count == 1 and not again.wait(1)


def test_handle_waits_for_unavailable_store(
    postgresql_server: servers.Server, postgresql_url: str
) -> None:
    name = postgresql_url.rpartition("/")[2]
    with stores.backend(postgresql_url) as store:
        handle = engines.submit(conducted.plain, backend=store, inputs=_NONE)
        postgresql_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgresql_server.cut(postgresql_url)
        try:
            with pytest.raises(exceptions.StorageFailure):
                _ = handle.state
            assert not handle.wait(0.5)
        finally:
            postgresql_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        with conducting(store):
            assert handle.wait(60)
