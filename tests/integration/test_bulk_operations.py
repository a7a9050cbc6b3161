"""Operations on many flows: their execution, also by several processes and after kills."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.operations import flows
from tests.support import servers
from tests.support.failed_flows import store_flows
from tests.support.killed import is_killed
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.conductors import _bulks
from wbengine.conductors.service import ConductorService
from wbengine.operations import _bulk
from wbengine.persistence import _commands, _leases, _owners, backends, base
from wbengine.persistence._bulk_records import CANCELLED, COMPLETE, RUNNING, Bulk, BulkFlow

SIGNAL = {"signal": "paid", "value": {"by": "ann"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def flows_of(uuids: list[str], state: str = states.FAILURE) -> list[BulkFlow]:
    return [BulkFlow(uuid, state) for uuid in uuids]


def run(store: base.Backend, bulk: Bulk, owner: str = "a") -> Bulk:
    """Carry an operation out until it is over."""
    bulk_run = _bulk.BulkRun(store, bulk, owner)
    while bulk_run.advance() and bulk_run.bulk.state == RUNNING:
        time.sleep(max(0.0, bulk_run.due - time.monotonic()))
    return bulk_run.bulk


def start_signals(store: base.Backend, uuids: list[str], **options: Any) -> Bulk:
    """Start an operation that sends a signal to flows that have not begun."""
    return _bulk.start(store, "flow signal", flows_of(uuids, states.PENDING), SIGNAL, **options)


def commands(store: base.Backend, uuids: list[str]) -> dict[str, str]:
    with contextlib.closing(store.get_connection()) as connection:
        return {uuid: command.what for uuid, command in connection.commands(uuids).items()}


def signals(store: base.Backend, uuids: list[str]) -> list[int]:
    """Return the number of signals of each flow."""
    with contextlib.closing(store.get_connection()) as connection:
        received = connection.signals(uuids)
    return [len(received.get(uuid, ())) for uuid in uuids]


def skipped(store: base.Backend, bulk: Bulk) -> dict[str, int]:
    with contextlib.closing(store.get_connection()) as connection:
        return {each.reason: each.flows for each in connection.bulks.skipped(bulk.uuid)}


def execute(store: base.Backend, statement: str) -> Any:
    with cast(Any, store).engine.begin() as connection:
        return connection.execute(sa.text(statement))


def test_flows_are_retried_with_reason_and_sender(store: base.Backend) -> None:
    uuids = store_flows(store, 3)
    bulk = _bulk.start(store, "flow retry", flows_of(uuids), {}, reason="release 43", by="ann")
    assert bulk.total == 3 and run(store, bulk).state == COMPLETE
    with contextlib.closing(store.get_connection()) as connection:
        requests = connection.commands(uuids)
        assert {(each.what, each.reason, each.by) for each in requests.values()} == {
            ("retry", "release 43", "ann")
        }
        assert len(requests) == 3 and connection.bulks.get(bulk.uuid).done == 3


def test_character_that_databases_cannot_store_is_replaced_in_the_reason(
    store: base.Backend,
) -> None:
    uuids = store_flows(store, 1)
    bulk = _bulk.start(store, "flow retry", flows_of(uuids), {}, reason="a\0b")
    assert run(store, bulk).reason == "a\N{REPLACEMENT CHARACTER}b"


def test_changed_and_deleted_flows_are_skipped_with_reason(store: base.Backend) -> None:
    same, retried, ended, deleted, other = store_flows(store, 5)
    own = store_flows(store, 1, is_submitted=False)[0]
    with contextlib.closing(store.get_connection()) as connection:
        connection.destroy_flow(deleted)
        connection.put_command(
            other, _commands.FlowCommand(_commands.REVERT, "wrong order", "bob", 1.0)
        )
    execute(store, f"UPDATE wbe_flowdetails SET state = 'RUNNING' WHERE uuid = '{retried}'")
    execute(store, f"UPDATE wbe_flowdetails SET state = 'REVERTED' WHERE uuid = '{ended}'")
    uuids = [same, retried, ended, deleted, other, own]
    bulk = run(store, _bulk.start(store, "flow retry", flows_of(uuids), {}))
    assert (bulk.done, bulk.skipped, bulk.state) == (1, 5, COMPLETE)
    reasons = skipped(store, bulk)
    assert set(reasons.values()) == {1}
    text = "\n".join(sorted(reasons))
    for part in (
        "Flow ID was deleted",
        "from FAILURE to RUNNING",
        "from FAILURE to REVERTED",
        "Flow ID has a pending request since",
        "Flow ID was not submitted",
    ):
        assert part in text
    assert commands(store, uuids) == {same: "retry", other: "revert"}


def test_flow_that_began_meanwhile_is_suspended(store: base.Backend) -> None:
    uuids = store_flows(store, 1, state=None)
    bulk = _bulk.start(store, "flow suspend", flows_of(uuids, states.PENDING), {}, by="ann")
    execute(store, "UPDATE wbe_flowdetails SET state = 'RUNNING'")
    assert run(store, bulk).done == 1 and commands(store, uuids) == {uuids[0]: "suspend"}


@pytest.mark.parametrize("force", [False, True])
def test_unfinished_flow_that_ran_meanwhile_is_deleted_only_with_force(
    store: base.Backend, force: bool
) -> None:
    same, resumed = store_flows(store, 2, state=states.SUSPENDED)
    arguments = {"any_state": True, "force": force}
    selected = flows_of([same, resumed], states.SUSPENDED)
    bulk = _bulk.start(store, "flow delete", selected, arguments)
    execute(store, f"UPDATE wbe_flowdetails SET state = 'RUNNING' WHERE uuid = '{resumed}'")
    assert run(store, bulk).done == 1 + force
    with contextlib.closing(store.get_connection()) as connection:
        assert [row.uuid for row in connection.list_flows().flows] == [resumed] * (not force)


def test_deleted_flow_leaves_no_logbook(store: base.Backend) -> None:
    uuids = store_flows(store, 2)
    assert run(store, _bulk.start(store, "flow delete", flows_of(uuids), {})).done == 2
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.count_flows() == 0 and not list(connection.get_logbooks())


def test_operation_without_flows_is_complete_after_a_batch(store: base.Backend) -> None:
    assert run(store, _bulk.start(store, "flow retry", [], {})).state == COMPLETE


@pytest.mark.parametrize("state", [states.PENDING, states.RUNNING])
@pytest.mark.parametrize(("name", "argument"), [("annotate", "text"), ("tag", "remove")])
def test_flows_that_engines_run_do_not_delay_other_writers(
    store: base.Backend, name: str, argument: str, state: str
) -> None:
    """An engine that is about to run a flow cannot write to the file before the operation ends."""
    uuids = store_flows(store, 5, state=state)
    owner = _owners.new()
    with contextlib.closing(store.get_connection()) as connection:
        for uuid in uuids:
            connection.acquire_lease(uuid, str(owner), 60.0)
    arguments = {argument: "known" if argument == "text" else ["known"]}
    bulk = _bulk.start(store, f"flow {name}", flows_of(uuids, state), arguments)
    began = time.monotonic()
    assert run(store, bulk).skipped == 5
    assert time.monotonic() - began < _leases.CHANGE_WAIT_SECONDS
    owner.end_run()


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("flow submit", {}, {}, "operation must be one of flow .*, got .flow submit."),
        ("flow retry", {"input": {}}, {}, "no parameter 'input'"),
        ("flow signal", {}, {}, "requires parameter 'signal'"),
        ("flow retry", {}, {"rate": 0.0}, "rate must be a number above 0"),
        ("flow retry", {}, {"rate": float("nan")}, "rate must be a number above 0"),
        ("flow retry", {}, {"rate": 1e-320}, "rate must be at least one flow per day"),
        ("flow retry", {}, {"reason": "x" * 501}, "at most 500 characters"),
        ("flow retry", {}, {"reason": "\ud800"}, "reason must be valid Unicode"),
    ],
)
def test_invalid_operation_is_not_stored(
    store: base.Backend, name: str, arguments: Any, options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _bulk.start(store, name, flows_of(["f"]), arguments, **options)
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.bulks.latest() == []


def test_arguments_of_one_flow_are_used_for_it_only(store: base.Backend) -> None:
    one, two = store_flows(store, 2)
    invalid = [BulkFlow(one, states.FAILURE, {"inputs": 5})]
    with pytest.raises(ValueError, match="inputs must be of type object"):
        _bulk.start(store, "flow retry", invalid, {})
    flows = [
        BulkFlow(one, states.FAILURE, {"results": {"missing": 1}}),
        BulkFlow(two, states.FAILURE),
    ]
    bulk = run(store, _bulk.start(store, "flow retry", flows, {}))
    assert (bulk.done, bulk.skipped) == (1, 1) and commands(store, [one, two]) == {two: "retry"}


def test_rate_limits_the_flows_per_second(store: base.Backend) -> None:
    uuids = store_flows(store, 12, state=None)
    began = time.monotonic()
    bulk = start_signals(store, uuids, rate=20.0)
    run(store, bulk)
    # The first batch starts at once.
    assert time.monotonic() - began >= (12 - 5) / 20.0
    assert signals(store, uuids) == [1] * 12


def test_batches_are_small_if_changes_wait_for_other_servers(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def change_slowly(backend: base.Backend, bulk: Bulk, flows: Any) -> dict[str, str]:
        sizes.append(len(flows))
        time.sleep(0.05 * len(flows))
        return {}

    monkeypatch.setattr(_bulk, "change", change_slowly)
    run(store, start_signals(store, store_flows(store, 18, state=None)))
    assert sizes[0] == _bulk.BulkRun.FIRST_BATCH and max(sizes[1:]) <= 2


def test_service_advances_several_operations_in_turn(store: base.Backend) -> None:
    uuids = store_flows(store, 40, state=None)
    slow, fast = start_signals(store, uuids, rate=0.01), start_signals(store, uuids)
    service = _bulks.BulkService(store, "a")
    until(lambda: service.run_due() >= 0 and _bulk.find(store, fast.uuid).state == COMPLETE)
    assert _bulk.find(store, slow.uuid).done == 1
    service.release()
    assert _bulk.find(store, slow.uuid).owner is None


def test_service_waits_while_another_process_carries_its_operation_out(
    store: base.Backend,
) -> None:
    uuids = store_flows(store, 9, state=None)
    bulk = start_signals(store, uuids, rate=1.0)
    service = _bulks.BulkService(store, "frozen")
    service.run_due()
    execute(store, "UPDATE wbe_bulks SET owner = 'other', owner_until = owner_until + 99")
    service._runs[bulk.uuid].due = 0.0  # The next batch would be due.
    assert service.run_due() == pytest.approx(service.POLL_SECONDS, abs=0.1)
    assert _bulk.find(store, bulk.uuid).owner == "other"


def test_operation_of_a_later_release_is_left_to_its_processes(store: base.Backend) -> None:
    uuids = store_flows(store, 2)
    bulk = _bulk.start(store, "flow retry", flows_of(uuids), {})
    execute(store, "UPDATE wbe_bulks SET arguments = '{\"later\": true}'")
    _bulks.BulkService(store, "a").run_due()
    with pytest.raises(exceptions.StorageFailure, match="'flow retry' with arguments: later"):
        run(store, bulk)
    assert _bulk.find(store, bulk.uuid).settled == 0
    execute(store, "UPDATE wbe_bulks SET arguments = '{}'")
    assert run(store, bulk).done == 2


def test_failed_operation_does_not_stop_the_others(store: base.Backend) -> None:
    uuids = store_flows(store, 2, state=None)
    bad, good = start_signals(store, uuids), start_signals(store, uuids)
    execute(
        store,
        "CREATE TRIGGER full BEFORE UPDATE OF done ON wbe_bulks"
        f" WHEN NEW.uuid = '{bad.uuid}' BEGIN SELECT RAISE(ABORT, 'disk full'); END",
    )
    service = _bulks.BulkService(store, "a")
    until(lambda: service.run_due() >= 0 and _bulk.find(store, good.uuid).state == COMPLETE)
    assert _bulk.find(store, bad.uuid).done == 0 and signals(store, uuids) == [1, 1]
    execute(store, "DROP TRIGGER full")
    until(lambda: service.run_due() >= 0 and _bulk.find(store, bad.uuid).state == COMPLETE)
    assert signals(store, uuids) == [2, 2]


def test_unexpected_error_of_an_operation_does_not_stop_the_others(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = store_flows(store, 2, state=None)
    bad, good = start_signals(store, uuids), start_signals(store, uuids)
    change = _bulk.change

    def failing(backend: base.Backend, bulk: Bulk, flows: Any) -> dict[str, str]:
        if bulk.uuid == bad.uuid:
            raise RuntimeError("broken")
        return change(backend, bulk, flows)

    monkeypatch.setattr(_bulk, "change", failing)
    service = _bulks.BulkService(store, "a")
    service.run_due()
    assert _bulk.find(store, good.uuid).state == COMPLETE
    assert _bulk.find(store, bad.uuid).done == 0 and signals(store, uuids) == [1, 1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no shop"), "Flow ID cannot be rebuilt: RuntimeError: no shop"),
        (ModuleNotFoundError("no shop"), "Flow ID cannot be rebuilt: ModuleNotFoundError: no shop"),
        (SystemExit(3), "Flow ID cannot be rebuilt: SystemExit: 3"),
        (exceptions.PayloadUnavailable("value is lost"), "value is lost"),
    ],
    ids=["exception", "import", "exit", "value"],
)
def test_flow_whose_code_raises_an_error_is_skipped(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    factory = "tests.operations.flows:raced"
    uuids = [engines.submit(factory, backend=store).id for _ in range(2)]
    flows.FAILING.add("b")
    for uuid in uuids:
        with contextlib.suppress(ValueError):
            operations.resume(store, uuid, never_resolve=True).run()
    flows.FAILING.clear()
    arguments = {"start": "failed", "results": {"a": "other"}}
    bulk = _bulk.start(store, "flow fork", flows_of(uuids), arguments)

    def fail() -> None:
        raise error

    monkeypatch.setattr(flows, "MEANWHILE", [fail])
    service = _bulks.BulkService(store, "a")
    service.run_due()
    ended = _bulk.find(store, bulk.uuid)
    assert (ended.state, ended.done, ended.skipped) == (COMPLETE, 1, 1)
    assert skipped(store, bulk) == {reason: 1}


def test_flow_whose_change_is_too_large_is_skipped(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = store_flows(store, 7, state=None)
    change = _bulk.change

    def limited(backend: base.Backend, bulk: Bulk, flows: Any) -> dict[str, str]:
        if uuids[3] in [flow.uuid for flow in flows]:
            raise exceptions.RecordTooLarge("Saving the flow failed: packet too large")
        return change(backend, bulk, flows)

    monkeypatch.setattr(_bulk, "change", limited)
    bulk = run(store, start_signals(store, uuids))
    assert (bulk.state, bulk.done) == (COMPLETE, 6)
    assert signals(store, uuids) == [int(number != 3) for number in range(7)]
    assert skipped(store, bulk) == {"Saving the flow failed: packet too large": 1}


def test_conductor_service_carries_operations_out(store: base.Backend) -> None:
    uuids = store_flows(store, 5, state=None, is_submitted=False)
    bulk = start_signals(store, uuids)
    service = ConductorService(store)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        until(lambda: _bulk.find(store, bulk.uuid).state == COMPLETE)
    finally:
        service.stop()
        thread.join()
    assert signals(store, uuids) == [1] * 5


def test_cancelled_operation_ends_between_batches(store: base.Backend) -> None:
    uuids = store_flows(store, 30, state=None)
    bulk = start_signals(store, uuids)
    bulk_run = _bulk.BulkRun(store, bulk, "a")
    assert bulk_run.advance()
    assert _bulk.cancel(store, bulk.uuid).state == CANCELLED
    assert not bulk_run.advance() and bulk_run.bulk.state == CANCELLED
    assert 0 < sum(signals(store, uuids)) == bulk_run.bulk.done < 30
    assert run(store, _bulk.resume(store, bulk.uuid), "b").state == COMPLETE
    assert signals(store, uuids) == [1] * 30


def test_operation_that_is_resumed_while_old_ones_are_deleted_is_kept(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = store_flows(store, 3, state=None)
    bulk = _bulk.cancel(store, start_signals(store, uuids).uuid)
    with contextlib.closing(store.get_connection()) as connection:
        bulks: Any = connection.bulks
        read = bulks._read

        def read_and_resume(*arguments: Any, **parameters: Any) -> Any:
            rows = read(*arguments, **parameters)
            _bulk.resume(store, bulk.uuid)
            return rows

        monkeypatch.setattr(bulks, "_read", read_and_resume)
        bulks.delete_ended(1e12)
    assert run(store, _bulk.find(store, bulk.uuid)).state == COMPLETE
    assert signals(store, uuids) == [1] * 3


def test_running_operation_is_listed_behind_many_later_ones(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bulk, "_MAX_ENDED", 2)
    running, *ended = (start_signals(store, []) for _ in range(4))
    for bulk in ended:
        run(store, bulk)
    with contextlib.closing(store.get_connection()) as connection:
        listed = [bulk.uuid for bulk in _bulk.latest(connection)]
    assert listed == [ended[2].uuid, ended[1].uuid, running.uuid]


def test_operation_is_found_by_the_beginning_of_its_id(store: base.Backend) -> None:
    bulk = _bulk.start(store, "flow retry", [], {})
    assert _bulk.find(store, bulk.uuid[:8]) == bulk
    for text in (bulk.uuid[:3], "zzzz"):
        with pytest.raises(exceptions.NotFound):
            _bulk.find(store, text)


_KILLED = [
    ("flow signal", SIGNAL, None),
    ("flow retry", {}, states.FAILURE),
    ("flow delete", {}, states.FAILURE),
    ("flow suspend", {}, states.SUSPENDED),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "arguments", "state"),
    [
        # Each operation on SQLite, and another one on each server.
        pytest.param(kind, *each, marks=() if number in quick else pytest.mark.slow)
        for kind, quick in (("sqlite", range(4)), ("postgresql", [1]), ("mysql", [2]))
        for number, each in enumerate(_KILLED)
    ],
)
def test_killed_process_misses_no_flow_and_repeats_none(
    tmp_path: Path,
    database_servers: servers.Databases,
    kind: str,
    name: str,
    arguments: Any,
    state: str | None,
) -> None:
    """At each crash point, the marks are those of the flows that have changed."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/flows.db"
        else:
            url = stack.enter_context(database_servers[kind].database())
        _check_kills(url, name, arguments, state)


def _check_kills(url: str, name: str, arguments: Any, state: str | None) -> None:
    with backends.backend(url) as store:
        uuids = store_flows(store, 5, state=state)
        bulk = _bulk.start(store, name, flows_of(uuids, state or states.PENDING), arguments)
        execute(store, "DELETE FROM wbe_jobs")

    def work() -> None:
        with backends.backend(url) as opened:
            bulk_run = _bulk.BulkRun(opened, _bulk.find(opened, bulk.uuid), "killed")
            bulk_run._batch = 2
            while bulk_run.advance() and bulk_run.bulk.state == RUNNING:
                bulk_run._batch = 2

    number = 1
    while is_killed(number, work):
        number += 1
        with backends.backend(url) as store:
            execute(store, "UPDATE wbe_bulks SET owner = NULL")
            settled = _bulk.find(store, bulk.uuid).settled
            assert _changed(store, name, uuids) == [index < settled for index in range(5)]
    assert number > 5
    with backends.backend(url) as store:
        ended = _bulk.find(store, bulk.uuid)
        assert (ended.done, ended.skipped, ended.state) == (5, 0, COMPLETE)
        assert _changed(store, name, uuids) == [True] * 5


def _changed(store: base.Backend, name: str, uuids: list[str]) -> list[bool]:
    """Return whether the operation was carried out on each flow, and not twice."""
    if name == "flow signal":
        received = signals(store, uuids)
        assert max(received) <= 1
        return [number == 1 for number in received]
    with contextlib.closing(store.get_connection()) as connection:
        if name == "flow delete":
            left = {row.uuid for row in connection.list_flows().flows}
            assert len(list(connection.get_logbooks(lazy=True))) == len(left)
            return [uuid not in left for uuid in uuids]
        if name == "flow suspend":
            details = [connection.get_flow_details(uuid, lazy=True) for uuid in uuids]
            assert not any(connection.get_lease(uuid) for uuid in uuids)
            return [detail.is_suspended_by_command for detail in details]
    jobs = execute(store, "SELECT uuid FROM wbe_jobs").scalars().all()
    requested = commands(store, uuids)
    assert sorted(requested) == sorted(jobs)
    return [uuid in requested for uuid in uuids]
