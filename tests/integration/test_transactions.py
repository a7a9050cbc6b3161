"""Tasks in transactions of a user's database."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import killed, servers, shop, workers
from wbengine import databases, engines, exceptions, retry, states, task
from wbengine._calls import invocation as calls
from wbengine._concurrency import crash_points
from wbengine.patterns import linear_flow
from wbengine.persistence import backends as stores
from wbengine.types import failure as ft

KINDS = ("sqlite", "postgresql", "mysql")


on_servers = pytest.mark.parametrize("here", KINDS[1:], indirect=True)


def dbapi_connection(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection


def flow_of(*tasks: task.Task) -> linear_flow.Flow:
    return linear_flow.Flow("order").add(*(tasks or (shop.charge(),)))


def charge(engine: str = "serial", flow: linear_flow.Flow | None = None) -> Any:
    return engines.run(flow or flow_of(), engine=engine, inputs={"order": 7})


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_effect_and_result_are_committed_together(here: shop.Shop, engine: str) -> None:
    assert charge(engine)["receipt"] == ("paid", 7)
    assert here.effects() == [7]
    assert here.rows() == [1]


def test_task_class_receives_connection(here: shop.Shop) -> None:
    assert charge(flow=flow_of(shop.Note()))["note"] == "order 7"
    assert here.effects() == [7]


def test_failed_function_leaves_neither_effect_nor_row(here: shop.Shop) -> None:
    shop.during.append(lambda connection: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        charge()
    assert here.effects() == here.rows() == []


def test_unencodable_result_fails_before_commit(here: shop.Shop) -> None:
    @task.task(transaction=shop.NAME)
    def charge_badly(connection: sa.Connection, order: int) -> object:
        shop.add_effect(connection, order)
        return object()

    with pytest.raises(exceptions.NotEncodable, match="result"):
        charge(flow=flow_of(charge_badly()))
    assert here.effects() == here.rows() == []


ENDS: dict[str, Callable[[sa.Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
    "COMMIT": lambda connection: connection.exec_driver_sql("/* now */ commit"),
    "ROLLBACK": lambda connection: connection.exec_driver_sql("ROLLBACK"),
    "BEGIN": lambda connection: connection.exec_driver_sql("BEGIN"),
}


@pytest.mark.parametrize("end", ENDS)
def test_function_must_not_end_its_transaction(here: shop.Shop, end: str) -> None:
    shop.during.append(ENDS[end])
    with pytest.raises(exceptions.InvalidState, match="must leave its transaction open"):
        charge()
    assert here.effects() == here.rows() == []


@pytest.mark.parametrize("end", ENDS)
def test_function_that_ignores_the_refusal_fails(here: shop.Shop, end: str) -> None:
    def try_to_end(connection: sa.Connection) -> None:
        with pytest.raises(exceptions.InvalidState):
            ENDS[end](connection)

    shop.during.append(try_to_end)
    with pytest.raises(exceptions.InvalidState, match="must leave its transaction open"):
        charge()
    assert here.effects() == here.rows() == []


def test_savepoints_are_allowed(here: shop.Shop) -> None:
    def use_savepoint(connection: sa.Connection) -> None:
        with pytest.raises(ZeroDivisionError), connection.begin_nested():
            shop.add_effect(connection, 1000)
            raise ZeroDivisionError
        with connection.begin_nested():
            shop.add_effect(connection, 8)

    shop.during.append(use_savepoint)
    charge()
    assert here.effects() == [7, 8]


def test_row_of_function_that_committed_by_itself_is_reported(here: shop.Shop) -> None:
    def commit(connection: sa.Connection) -> None:
        dbapi_connection(connection).commit()
        raise ZeroDivisionError

    shop.during.append(commit)
    with pytest.raises(exceptions.InvalidState, match="its function ended the transaction"):
        charge()
    assert here.effects() == [7]


@pytest.mark.parametrize("here", ["postgresql"], indirect=True)  # MySQL only undoes the statement.
def test_error_that_aborts_the_transaction_is_not_ignored(here: shop.Shop) -> None:
    def violate(connection: sa.Connection) -> None:
        with pytest.raises(sa.exc.DBAPIError):
            connection.exec_driver_sql("SELECT * FROM missing")

    shop.during.append(violate)
    with pytest.raises(sa.exc.DBAPIError, match="aborted"):
        charge()
    assert here.effects() == here.rows() == []


CONFLICTS = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
}


@on_servers
def test_conflict_of_transactions_starts_function_again(here: shop.Shop) -> None:
    starts: list[int] = []

    def conflict(connection: sa.Connection) -> None:
        starts.append(1)
        if len(starts) < 3:
            connection.exec_driver_sql(CONFLICTS[here.dialect])

    shop.during.append(conflict)
    charge()
    assert len(starts) == 3
    assert here.effects() == [7]


@on_servers
def test_conflict_that_lasts_fails_the_task(here: shop.Shop) -> None:
    shop.during.append(lambda connection: connection.exec_driver_sql(CONFLICTS[here.dialect]))
    with pytest.raises(sa.exc.DBAPIError):
        charge()
    assert here.effects() == here.rows() == []


@on_servers
def test_connection_that_is_lost_before_commit_starts_function_again(
    here: shop.Shop, database_servers: servers.Databases
) -> None:
    starts: list[int] = []

    def cut(connection: sa.Connection) -> None:
        starts.append(1)
        if len(starts) == 1:
            database_servers[here.dialect].cut(here.url)

    shop.during.append(cut)
    assert charge()["receipt"] == ("paid", 7)
    assert len(starts) == 2
    assert here.effects() == [7]


@on_servers
def test_connection_that_is_lost_after_commit_has_one_effect(
    here: shop.Shop, database_servers: servers.Databases
) -> None:
    cuts: list[int] = []

    def cut(connection: sa.Connection) -> None:
        def commit_and_cut(connection: sa.Connection) -> None:
            dbapi_connection(connection).commit()
            cuts.append(1)
            database_servers[here.dialect].cut(here.url)

        if not cuts:  # The server commits, but its reply is lost.
            sa.event.listen(connection, "commit", commit_and_cut)

    shop.during.append(cut)
    assert charge()["receipt"] == ("paid", 7)
    assert cuts == [1]
    assert here.effects() == [7]


# Crashes and other processes.


def run_stored(url: str, kind: str = "serial", *tasks: task.Task) -> Any:
    """Run a flow of a store, or continue it."""
    with stores.backend(url) as store:
        with store.get_connection() as connection:
            books = list(connection.get_logbooks())
        detail = next(iter(books[0]), None) if books else None
        flow = flow_of(*tasks)
        load: dict[str, Any] = {} if detail is None else {"flow_detail": detail}
        engine = engines.load(flow, engine=kind, store={"order": 7}, backend=store, **load)
        if detail is None or detail.state not in states.FLOW_ENDED:
            with contextlib.suppress(shop.Declined):
                engine.run()
        return engine.storage


sweeps = pytest.mark.parametrize(
    "here",
    ["sqlite", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])],
    indirect=True,
)


@pytest.mark.slow
@sweeps
@pytest.mark.parametrize("engine", ["serial", pytest.param("parallel", marks=pytest.mark.slow)])
def test_effect_happens_once_when_engine_is_killed_at_any_point(
    here: shop.Shop, tmp_path: Path, engine: str
) -> None:
    points = killed_points(here, tmp_path, engine, lambda: [shop.charge()], [7])
    assert points > 10


@pytest.mark.slow
def test_effect_is_undone_once_when_engine_is_killed_at_any_point(
    here: shop.Shop, tmp_path: Path
) -> None:
    points = killed_points(here, tmp_path, "serial", lambda: [shop.charge(), shop.fail()], [-7])
    assert points > 10


def killed_points(
    here: shop.Shop,
    tmp_path: Path,
    engine: str,
    tasks: Callable[[], list[task.Task]],
    effects: list[int],
) -> int:
    """Kill the engine at each point once, and let another process finish the flow.

    :returns: the number of runs.
    """
    number, was_killed = 0, True
    while was_killed:
        number += 1
        url = f"sqlite:///{tmp_path}/flows-{number}.db"
        here.execute("DELETE FROM effects")
        was_killed = killed.is_killed(number, run_stored, url, engine, *tasks())
        storage = run_stored(url, engine, *tasks())
        assert here.effects() == effects, number
        if effects == [7]:
            assert storage.get("tests.support.shop.charge") == ("paid", 7)
    return number


def run_in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_second_process_waits_for_the_first_and_returns_its_result(
    here: shop.Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one is frozen between its effect and its commit."""
    first, second = (call_of("atom", attempt) for attempt in (1, 2))
    frozen, resumed = threading.Event(), threading.Event()

    def freeze(point: str) -> None:
        if point == "step.before-commit" and threading.current_thread() is not thread_2:
            frozen.set()
            resumed.wait(60)

    thread_2: threading.Thread | None = None
    crash_points.install(freeze)
    try:
        thread_1, results_1 = run_in_thread(first)
        assert frozen.wait(60)
        thread_2, results_2 = run_in_thread(second)
        workers.until(lambda: "waits for another transaction" in caplog.text)
        assert thread_2.is_alive()
        resumed.set()
        thread_1.join(60)
        thread_2.join(60)
    finally:
        crash_points.install(None)
        resumed.set()
    assert results_1 == results_2 == [("paid", 7)]
    assert here.effects() == [7]


def call_of(
    uuid: str, attempt: int, action: calls.Action = "execute", **values: Any
) -> Callable[[], Any]:
    """Return a function that makes one call of a task, as an executor does."""
    call = calls.Invocation(shop.charge(), action, uuid, attempt, {"order": 7})
    for name, value in values.items():
        setattr(call, name, value)

    def invoke() -> Any:
        value = calls.invoke(call).value
        if isinstance(value, ft.Failure):
            value.reraise()
        return value

    return invoke


PAID, REFUNDED = ("paid", 7), "refunded"
LOST = ft.Failure.from_exception(exceptions.WorkerLost("lost"))
DECLINED = ft.Failure.from_exception(ValueError("declined"))
OTHER_ORDER = {"arguments": {"order": 8}}


def executed(attempt: int, expected: object, **values: Any) -> tuple[Any, object]:
    return functools.partial(call_of, "atom", attempt, **values), expected


def reverted(
    attempt: int, result: object, expected: object = REFUNDED, **values: Any
) -> tuple[Any, object]:
    return executed(attempt, expected, action="revert", result=result, **values)


#: Calls with their results, or the words of their errors; and the effects after them.
CALLS: dict[str, tuple[list[Any], list[int]]] = {
    "later attempt makes an earlier one outdated": (
        [executed(2, PAID), executed(1, re.compile(r"Attempt 1 .* is outdated: attempt 2"))], [7]
    ),
    "redelivered execution returns stored result": ([executed(1, PAID), executed(1, PAID)], [7]),
    "attempt after lost result returns it": ([executed(1, PAID), executed(2, PAID)], [7]),
    "attempt after lost result with other arguments is refused": (
        [executed(1, PAID),
         executed(2, re.compile("other arguments than its attempt 1"), **OTHER_ORDER)], [7]
    ),
    "attempt after known result takes effect again": (
        [executed(1, PAID), executed(2, ("paid", 8), settled=1, **OTHER_ORDER)], [7, 8]
    ),
    "lost execution is reverted with its stored result": (
        [executed(1, PAID), reverted(2, LOST)], [-7]
    ),
    "revert prevents later effect of lost execution": (
        [reverted(2, LOST, None), executed(1, re.compile("is outdated"))], []
    ),
    "revert is repeated neither as copy nor as later attempt": (
        [executed(1, PAID), *[reverted(attempt, PAID) for attempt in (2, 2, 3)]], [-7]
    ),
    "execution after revert takes effect again": (
        [executed(1, PAID), reverted(2, PAID), executed(3, PAID, settled=2)], [-7, 7]
    ),
    "failed execution after revert is not undone again": (
        [executed(1, PAID), reverted(2, PAID), reverted(4, DECLINED, None, settled=2)], [-7]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_several_processes_have_one_effect(here: shop.Shop, name: str) -> None:
    """Each process makes one call: executions, copies of them, and reverts."""
    calls_of_processes, effects = CALLS[name]
    for make_call, expected in calls_of_processes:
        call = make_call()
        if isinstance(expected, re.Pattern):
            with pytest.raises(exceptions.InvalidState, match=expected):
                call()
        else:
            assert call() == expected
    assert here.effects() == effects
    if name == "attempt after lost result returns it":
        assert here.rows() == [2]


# Reverts, retries, Maps and workflows.


def test_failed_flow_undoes_the_effect(here: shop.Shop) -> None:
    with pytest.raises(shop.Declined):
        charge(flow=flow_of(shop.charge(), shop.fail()))
    assert here.effects() == [-7]


def test_retry_controller_executes_again_after_revert(here: shop.Shop) -> None:
    tries: list[int] = []

    @task.task
    def decline_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise shop.Declined

    flow = linear_flow.Flow("order", retry=retry.Times(2)).add(shop.charge(), decline_once())
    assert charge(flow=flow)["receipt"] == ("paid", 7)
    assert here.effects() == [-7, 7]
    assert here.rows() == [3]


def test_task_without_revert_takes_effect_in_each_known_execution(here: shop.Shop) -> None:
    """A retry is a new execution: the result of the first one is known."""
    tries: list[int] = []

    @task.task(transaction=shop.NAME)
    def log(connection: sa.Connection, order: int) -> None:
        shop.add_effect(connection, order)

    @task.task
    def decline_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise shop.Declined

    flow = linear_flow.Flow("order", retry=retry.Times(2)).add(log(), decline_once())
    charge(flow=flow)
    assert here.effects() == [7, 7]


@pytest.mark.slow
def test_task_with_retries_has_one_effect(here: shop.Shop) -> None:
    failures = iter([True, True, False])

    @task.task(transaction=shop.NAME, retries=2)
    def charge_later(connection: sa.Connection, order: int) -> None:
        shop.add_effect(connection, order)
        if next(failures):
            raise shop.Declined

    charge(flow=flow_of(charge_later()))
    assert here.effects() == [7]


@pytest.mark.slow
def test_reset_flow_takes_effect_again(here: shop.Shop) -> None:
    engine = engines.load(flow_of(), inputs={"order": 7})
    engine.run()
    engine.reset()
    engine.run()
    assert here.effects() == [7, 7]


@pytest.mark.slow
def test_reset_flow_takes_effect_again_in_a_child_process(
    here: shop.Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_DATABASES", json.dumps({shop.NAME: here.url}))
    pool = {"executor": "processes", "max_workers": 1}
    engine = engines.load(flow_of(), inputs={"order": 7}, engine="parallel", **pool)
    engine.run()
    engine.reset()
    engine.run()
    assert here.effects() == [7, 7]


def test_effect_of_retried_failed_task_happens_once(here: shop.Shop) -> None:
    """`flow retry` resets only failed tasks, whose effect may be unknown."""
    cancellations: list[int] = []

    class Charge(shop.Note):
        def post_execute(self) -> None:
            if not cancellations:
                cancellations.append(1)
                raise shop.Declined  # after the commit

    engine = engines.load(flow_of(Charge()), inputs={"order": 7}, never_resolve=True)
    with pytest.raises(shop.Declined):
        engine.run()
    assert here.effects() == [7]
    engine.reset(failed_only=True)
    engine.run()
    assert engine.storage.fetch("note") == "order 7"
    assert here.effects() == [7]


def test_each_item_of_a_map_has_its_row(here: shop.Shop) -> None:
    each = task.Map(shop.charge(), over="orders", item="order", provides="receipts")
    orders = [1, 2, 2, 3]
    results = engines.run(linear_flow.Flow("f").add(each), inputs={"orders": orders})
    assert results["receipts"] == [("paid", order) for order in orders]
    assert here.effects() == orders
    assert here.rows() == [1] * 4


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_failed_map_undoes_each_item_once(here: shop.Shop, engine: str) -> None:
    each = task.Map(shop.charge(), over="orders", item="order")
    flow = linear_flow.Flow("f").add(each, shop.fail(inject={"order": 0}))
    with pytest.raises(shop.Declined):
        engines.run(flow, inputs={"orders": [1, 2, 3]}, engine=engine)
    assert here.effects() == [-3, -2, -1]


@task.workflow
def two_orders(steps: Any, fails: bool = False) -> list[Any]:
    receipts = [steps.run(shop.charge, number) for number in (1, 2)]
    if fails:
        raise shop.Declined
    return receipts


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_steps_of_workflow_have_rows(here: shop.Shop, engine: str) -> None:
    flow = linear_flow.Flow("f").add(two_orders(provides="receipts"))
    assert engines.run(flow, engine=engine)["receipts"] == [("paid", 1), ("paid", 2)]
    assert here.effects() == [1, 2]
    with pytest.raises(shop.Declined):
        engines.run(flow, engine=engine, inputs={"fails": True})
    assert here.effects() == [-2, -1]


@pytest.mark.slow
@pytest.mark.parametrize("here", ["sqlite"], indirect=True)
def test_step_takes_effect_once_when_engine_is_killed_at_any_point(
    here: shop.Shop, tmp_path: Path
) -> None:
    points = killed_points(here, tmp_path, "serial", lambda: [two_orders()], [1, 2])
    assert points > 10


# Rows of deleted flows.


def test_sweep_deletes_old_rows_of_missing_flows_only(here: shop.Shop, tmp_path: Path) -> None:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        kept = engines.load(flow_of(), backend=store, inputs={"order": 1})
        kept.run()
        charge()
        assert databases.sweep(shop.NAME, store) == 0
        assert databases.sweep(shop.NAME, store, older_than=0.0) == 1
        assert databases.sweep(shop.NAME, store, older_than=0.0) == 0
    assert here.rows() == [1]


# Without a database.


def test_unknown_database_is_reported_before_the_flow_runs() -> None:
    ran: list[int] = []

    @task.task
    def first() -> None:
        ran.append(1)

    @task.task(transaction="shopp")
    def second(connection: sa.Connection) -> None: ...

    with pytest.raises(exceptions.NotFound, match=r"Database 'shopp' of task .*second"):
        engines.run(linear_flow.Flow("f").add(first(), second()))
    assert ran == []


def test_function_runs_with_a_connection_of_a_test() -> None:
    with sa.create_engine("sqlite://").begin() as connection:
        connection.execute(sa.text("CREATE TABLE effects (number INTEGER)"))
        assert shop.charge.fn(connection, 7) == ("paid", 7)


def test_function_without_connection_is_refused() -> None:
    @task.task(transaction=shop.NAME)
    def pay(order: int, connection: sa.Connection) -> None: ...

    with pytest.raises(ValueError, match="the first argument of execute must be 'connection'"):
        pay()


def test_async_function_is_refused() -> None:
    @task.task(transaction=shop.NAME)
    async def pay(connection: sa.Connection) -> None: ...

    with pytest.raises(ValueError, match="must not be 'async def'"):
        pay()


@pytest.mark.parametrize("source", ["oracle://x", "sqlite+aiosqlite:///x"])
def test_unsupported_database_is_refused(source: str) -> None:
    with pytest.raises((ValueError, ImportError)):
        databases.register("other", source)


def test_invalid_url_is_reported_without_its_password() -> None:
    with pytest.raises(ValueError, match="URL of a database") as caught:
        databases.register("other", "postgresql://me:hidden@host")
    assert "hidden" not in str(caught.value)
