"""Versions of the code of conductors, and the flows that each of them runs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import places
from tests.seams import stores as stored_in
from tests.support import conducted, released, servers
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine.conductors import _code_versions, service
from wbengine.diagnosis import _store_checks, findings
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _codes, backends, base
from wbengine.views import _flow_list, flow_status


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    released.park_at_once(monkeypatch)


@pytest.fixture(params=[None])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[str]:
    if request.param is None:
        yield f"sqlite:///{tmp_path}/flows.db"
        return
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture
def store(uri: str) -> Iterator[base.Backend]:
    with backends.backend(uri) as opened:
        yield opened


dialects = pytest.mark.parametrize("uri", [*stored_in.DURABLE, "mysql"], indirect=True)


@contextlib.contextmanager
def serving(
    store: base.Backend, version: str | None, code: str = "old", exact: bool = False
) -> Iterator[released.Conductor]:
    with boards.backend("b", "sql", persistence=store) as board:
        versions = _code_versions.CodeVersions(store, version, is_exact=exact)
        versions.register()
        conductor = released.Conductor(board, store, code, versions=versions)
        with conducted.running(conductor):
            yield conductor


def read(store: base.Backend, uuid: str) -> flow_status.FlowView:
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(uuid=uuid).flows
        view = flow_status.read(connection, uuid)
    if row.lease is None and row.state == view.state:
        assert view.shown_state == _flow_list.shown_state(row)
    return view


def shown(store: base.Backend, uuid: str) -> str:
    return read(store, uuid).shown_state


def code_of(store: base.Backend, uuid: str) -> str | None:
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(uuid=uuid).flows
        assert row.code == connection.get_flow_details(uuid).code
        return row.code


def submit(store: base.Backend, version: str | None, code: str = "old") -> engines.FlowHandle:
    """Submit a flow, and run it with this version until it waits for a signal."""
    handle = engines.submit(released.orders, backend=store)
    with serving(store, version, code), boards.backend("b", "sql", persistence=store) as board:
        until(
            lambda: (
                shown(store, handle.id) == states.WAITING
                and all(job.state == states.UNCLAIMED for job in board.iterjobs())
            )
        )
    return handle


def add_codes(store: base.Backend, *versions: str) -> None:
    with contextlib.closing(store.get_connection()) as connection:
        for version in versions:
            connection.add_codes(version, ["tests"])


def run_other_flow(store: base.Backend) -> None:
    """Let the conductor run another flow, so that it has read all earlier jobs."""
    assert engines.submit(conducted.greeting, backend=store, inputs={"name": "x"}).result(60)


@dialects
def test_flow_of_later_code_waits_until_it_is_assigned(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_codes(store, "v42")
    handle = submit(store, "v43")
    assert code_of(store, handle.id) == "tests:v43"
    handle.signal("go")
    monkeypatch.setattr(_codes, "LIVE_SECONDS", 3600.0)
    with serving(store, "v42") as conductor:
        run_other_flow(store)
        assert handle.id not in conductor.runs
        monkeypatch.setattr(_codes, "LIVE_SECONDS", 0.0)
        waiting = read(store, handle.id).waiting or ""
        assert waiting.startswith(
            "The flow waits for code v43 or newer of tests: no conductor has it."
        )
        assert operations.assign(store, "v43", "v42", dry_run=True) == {"tests": 1}
        assert code_of(store, handle.id) == "tests:v43"
        assert operations.assign(store, "v43", "v42") == {"tests": 1}
        handle.result(60)
    assert code_of(store, handle.id) == "tests:v42"
    assert released.CALLS == ["charge", "ship"]


def test_flow_of_earlier_code_continues_with_later_code(store: base.Backend) -> None:
    handle = submit(store, "v42")
    handle.signal("go")
    with serving(store, "v43", "versioned"):
        handle.result(60)
    assert code_of(store, handle.id) == "tests:v43"
    assert released.CALLS == ["charge", "ship"]


def test_flow_without_version_continues_with_any_code(store: base.Backend) -> None:
    handle = submit(store, None)
    assert code_of(store, handle.id) is None
    add_codes(store, "v42", "v43")
    handle.signal("go")
    with serving(store, "v42", exact=True):
        handle.result(60)
    assert code_of(store, handle.id) == "tests:v42"


def test_conductor_without_version_runs_flows_of_all_codes(store: base.Backend) -> None:
    handle = submit(store, "v43")
    handle.signal("go")
    with serving(store, None):
        handle.result(60)


def test_blocked_replay_does_not_change_the_code_of_a_flow(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = submit(store, "v42")
    handle.signal("go")
    with serving(store, "v43", "new"):
        until(lambda: shown(store, handle.id) == states.BLOCKED)
    view = read(store, handle.id)
    assert view.waiting is not None and "in code v43." in view.waiting
    assert code_of(store, handle.id) == "tests:v42"
    with serving(store, "v42"):
        handle.result(60)


def test_signal_for_nothing_does_not_change_the_code_of_a_flow(store: base.Backend) -> None:
    handle = submit(store, "v42")
    handle.signal("other")
    with serving(store, "v43") as conductor:
        until(lambda: handle.id in conductor.runs)
        until(lambda: shown(store, handle.id) == states.WAITING)
    assert code_of(store, handle.id) == "tests:v42"


def test_assigned_flow_whose_replay_differs_is_blocked(store: base.Backend) -> None:
    add_codes(store, "v42")
    same, other = submit(store, "v43"), submit(store, "v43", "new")
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.flows_by_code() == {"tests:v43": 2}
    same.signal("go")
    assert operations.assign(store, "v43", "v42", app="tests") == {"tests": 2}
    with serving(store, "v42"):
        same.result(60)
        until(lambda: shown(store, other.id) == states.BLOCKED)
    assert released.CALLS.count("refund") == 0
    assert code_of(store, other.id) == "tests:v42"


def test_exact_policy_runs_only_flows_of_its_version(store: base.Backend) -> None:
    handle = submit(store, "v42")
    handle.signal("go")
    with serving(store, "v43", exact=True) as conductor:
        run_other_flow(store)
        assert handle.id not in conductor.runs
    with serving(store, "v42", exact=True):
        handle.result(60)


def test_board_in_another_store_leaves_flows_of_later_code(
    tmp_path: Path, store: base.Backend
) -> None:
    add_codes(store, "v42", "v43")
    options = {"board": "sql", "connection": f"sqlite:///{tmp_path}/jobs.db"}
    with boards.backend("b", options, persistence=store) as board:
        _, uuid = conducted.post(board, store, released.orders)
        with contextlib.closing(store.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
            detail.code = "tests:v43"
            connection.save_changes(detail, ())
        versions = _code_versions.CodeVersions(store, "v42")
        versions.register()
        conductor = released.Conductor(board, store, "old", versions=versions)
        with conducted.running(conductor):
            other, _ = conducted.post(board, store, conducted.greeting, inputs={"name": "x"})
            until(lambda: board.job_count == 1)
        assert conductor.runs == [other.uuid]


@dialects
def test_versions_that_start_at_once_get_one_number_each(store: base.Backend) -> None:
    versions = ["v1", "v2", "v1", "v2", "v3"]
    threads = [threading.Thread(target=add_codes, args=(store, version)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.closing(store.get_connection()) as connection:
        known = connection.codes()
        assert sorted(code.text for code in known) == ["tests:v1", "tests:v2", "tests:v3"]
        assert len({code.number for code in known}) == 3 and all(code.is_live for code in known)
        connection.add_codes("v1", ["tests", "other"])
        numbers = [(code.text, code.number) for code in connection.codes()]
        assert numbers[:3] == [(code.text, code.number) for code in known]
        assert numbers[3][0] == "other:v1"


@dialects
@pytest.mark.parametrize("first", ["v42", "v43"])
def test_versions_keep_their_order_if_the_later_one_runs_a_new_app_first(
    store: base.Backend, first: str
) -> None:
    versions = {name: _code_versions.CodeVersions(store, name) for name in ("v42", "v43")}
    for each in versions.values():
        each.register()
    handle = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"})
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(handle.id, lazy=True)
        detail.code = versions[first].code_of(detail)
        assert [each.accepts(detail) for each in versions.values()] == [first == "v42", True]
        for each in versions.values():
            each.code_of(detail)
        known = [code.text for code in connection.codes() if code.app]
    assert known == ["tests:v42", "tests:v43"]
    with pytest.raises(exceptions.NotFound, match="Unknown code version 'v44'"):
        operations.assign(store, "v44", "v42")


def test_versions_of_other_apps_do_not_change_the_order_of_an_app(store: base.Backend) -> None:
    for version in ("v2", "v1"):
        _code_versions.CodeVersions(store, version).register()
    handle = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"})
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(handle.id, lazy=True)
        for version in ("v1", "v2"):
            _code_versions.CodeVersions(store, version, "shop").code_of(detail)
        known = [code.text for code in connection.codes() if code.app]
    assert known == ["shop:v1", "shop:v2"]


def test_memory_store_keeps_versions() -> None:
    with contextlib.closing(backends.fetch("memory://")) as store:
        add_codes(store, "v1", "v2", "v1")
        with contextlib.closing(store.get_connection()) as connection:
            assert [code.text for code in connection.codes()] == ["tests:v1", "tests:v2"]
            connection.report_code("v2")
            assert all(code.is_live for code in connection.codes())
            connection.withdraw_code("v1")
            assert [code.version for code in connection.codes() if code.is_live] == ["v2"]
            connection.report_code("v1")
            connection.add_codes("v4", ["tests"], ["v3", "v1"])
            known = connection.codes()
            assert [code.version for code in known if code.is_live] == ["v1", "v2", "v4"]
            assert [code.version for code in known] == ["v1", "v2", "v3", "v4"]


def test_flow_of_a_map_stores_the_code_that_runs_its_items() -> None:
    greet = task.Map(conducted.Greet("greet"), over="names", item="name")
    with contextlib.closing(backends.fetch("memory://")) as store:
        engine = engines.load(greet, store={"names": ["a", "b"]}, backend=store)
        engine.storage.code = "tests:v42"
        engine.run()
        assert code_of(store, engine.storage.flow_uuid) == "tests:v42"


def test_unknown_versions_are_refused(store: base.Backend) -> None:
    add_codes(store, "v42")
    submit(store, "v43")
    with pytest.raises(exceptions.NotFound, match="Unknown code version 'v44'"):
        operations.assign(store, "v44", "v42")
    with pytest.raises(exceptions.NotFound, match="'tests' has no code version 'v41'"):
        operations.assign(store, "v43", "v41")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"code_version": "v 43"}, "code_version must be"),
        ({"code_version": "v1", "app": "a:b"}, "app must be"),
        ({"app": "shop"}, "require code_version"),
        ({"exact_code": True}, "require code_version"),
    ],
)
def test_invalid_code_options_are_refused(
    store: base.Backend, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        service.ConductorService(store, **options)  # type: ignore[arg-type]


def test_service_registers_its_version_and_an_app_of_its_own(store: base.Backend) -> None:
    serve = service.ConductorService(store, code_version="v1", app="shop")
    with conducted.running(serve):
        run_other_flow(store)
        with contextlib.closing(store.get_connection()) as connection:
            assert _codes.is_served(connection.codes())
    with contextlib.closing(store.get_connection()) as connection:
        (code,) = connection.codes()
        (row,) = connection.list_flows().flows
    assert code.text == row.code == "shop:v1" and not code.is_live, "it has ended"


def test_service_reports_its_version_again_after_another_one_ended(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.05)
    ended, lasting = (service.ConductorService(store, code_version="v1") for _ in range(2))
    with (
        conducted.running(lasting),
        contextlib.closing(store.get_connection()) as connection,
    ):
        with conducted.running(ended):
            until(lambda: _codes.is_served(connection.codes()))
        until(lambda: _codes.is_served(connection.codes()), within=1.0)


def test_doctor_counts_flows_that_wait_for_code(
    store: base.Backend, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(store, "v43")
    monkeypatch.setattr(_codes, "LIVE_SECONDS", 0.0)
    found = [each for each in _store_checks.check(findings.Place(persistence=uri)) if not each.good]
    assert [each.check for each in found] == ["code versions"]
    assert found[0].text.startswith("1 flow waits for code v43 or newer of tests")


# Flows whose code does not repeat the recorded steps, in conductors.


@pytest.fixture
def board(store: base.Backend) -> Iterator[impl_sql.SQLJobBoard]:
    with boards.backend("b", "sql", persistence=store) as opened:
        assert isinstance(opened, impl_sql.SQLJobBoard)
        yield opened


def block(board: impl_sql.SQLJobBoard) -> engines.FlowHandle:
    """Return a flow of the old code that the new code does not repeat."""
    assert board.persistence is not None
    handle = submit(board.persistence, None)
    handle.signal("go")
    with serving(board.persistence, None, "new"):
        until(lambda: len(board.blocked_jobs()) == 1)
    return handle


@dialects
def test_other_code_blocks_flow_until_a_conductor_with_its_code_starts(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    assert shown(store, handle.id) == states.BLOCKED and board.job_count == 1
    waiting = read(store, handle.id).waiting or ""
    assert "step 1 of workflow 'order' is recorded as" in waiting
    assert "check" in waiting and "go" in waiting
    assert released.CALLS == ["charge"]
    with serving(store, None, "old"):
        handle.result(60)
    assert released.CALLS == ["charge", "ship"] and board.job_count == 0


def test_running_conductor_continues_flow_that_another_one_blocked(store: base.Backend) -> None:
    """The last conductor with the old code may block flows after all new ones have started."""
    handle = submit(store, None, "new")
    with serving(store, None, "new") as new:
        with serving(store, None, "old") as old:
            until(lambda: handle.id in old.runs or handle.state == states.SUCCESS or send(handle))
        handle.result(60)
    assert released.CALLS == ["charge", "check", "ship"]
    assert new.runs[-1] == handle.id


def send(handle: engines.FlowHandle) -> bool:
    # The flow may have received it, or have ended since its state was read.
    with contextlib.suppress(exceptions.Duplicate, exceptions.InvalidState):
        handle.signal("go")
    return False


def test_blocked_flow_runs_once_in_each_conductor_after_other_flows(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    live = [engines.submit(conducted.greeting, backend=store, inputs={"name": "Ada"})]
    with serving(store, None, "new") as conductor:
        until(lambda: handle.id in conductor.runs)
        live.append(engines.submit(conducted.greeting, backend=store, inputs={"name": "B"}))
        assert [each.result(60)["greeting"] for each in live]
        until(lambda: len(board.blocked_jobs()) == 1)
    assert conductor.runs == [live[0].id, handle.id, live[1].id]
    assert shown(store, handle.id) == states.BLOCKED


def test_blocked_flow_that_is_cancelled_is_reverted(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    handle.cancel("wrong release")
    with serving(store, None, "new"), pytest.raises(exceptions.Cancelled):
        handle.result(60)
    assert released.CALLS == ["charge", "refund"] and board.job_count == 0


def test_suspended_blocked_flow_is_not_run(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    operations.suspend(store, handle.id)
    assert shown(store, handle.id) == states.SUSPENDED and board.job_count == 0


def test_version_keeps_the_path_of_flows_in_flight(store: base.Backend) -> None:
    handles = [submit(store, None), submit(store, None, "versioned")]
    for handle in handles:
        handle.signal("go")
    with serving(store, None, "versioned"):
        for handle in handles:
            handle.result(60)
    assert sorted(released.CALLS) == ["charge", "charge", "check", "ship", "ship"]


def test_board_in_another_store_keeps_blocked_job(tmp_path: Path, store: base.Backend) -> None:
    options = {"board": "sql", "connection": f"sqlite:///{tmp_path}/jobs.db"}
    with boards.backend("b", options, persistence=store) as board:
        job, uuid = conducted.post(board, store, released.orders)
        old = released.Conductor(board, store, "old")
        with conducted.running(old):
            until(lambda: shown(store, uuid) == states.WAITING)
        operations.signal(store, uuid, "go")
        for _ in range(2):
            new = released.Conductor(board, store, "new")
            with conducted.running(new):
                until(functools.partial(bool, new.runs))
                until(lambda: shown(store, uuid) == states.BLOCKED)
            assert board.job_count == 1 and new.runs == [job.uuid]
        with conducted.running(released.Conductor(board, store, "old")):
            until(lambda: board.job_count == 0)
    assert shown(store, uuid) == states.SUCCESS
    assert released.CALLS == ["charge", "ship"]
