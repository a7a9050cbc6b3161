"""Jobs and flows that conductors run."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from tests.support.conducted import running
from tests.support.server_kinds import free_port
from tests.support.waiting import until
from wbengine import engines, exceptions, states
from wbengine.conductors import backends
from wbengine.conductors.backends import impl_blocking, impl_executor, impl_nonblocking
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs import stored
from wbengine.listeners import capturing
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.persistence import commands, models

KINDS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "nonblocking": {"max_simultaneous_jobs": 3},
    "executor": {"executor_factory": lambda: futures.ThreadPoolExecutor(2)},
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Any]:
    return {"folder": str(tmp_path), "mark": "m"}


def state_of(store: persistence.Backend, uuid: str) -> str | None:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid, lazy=True).state


def is_done(job: jobs.Job) -> Callable[[], bool]:
    return lambda: job.state == states.COMPLETE


@pytest.mark.parametrize("kind", KINDS)
def test_posted_flow_is_run_and_its_job_consumed(
    kind: str, store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The conductor notifies each stage in order while it owns the claim."""
    conductor = backends.fetch(kind, "me", board, persistence=store, **KINDS[kind])
    told: list[Any] = []
    left: list[float] = []

    def tell(event: str, details: dict[str, Any]) -> None:
        assert details["conductor"] is conductor
        told.append((event, board.find_owner(details["job"])))
        if event == "compilation_start":
            left.append(details["job"].expires_in())

    conductor.notifier.register("*", tell)
    job, uuid = conducted.post(board, store, conducted.plain, inputs=inputs)
    with running(conductor):
        until(is_done(job))
    assert conductor.wait(0)
    assert state_of(store, uuid) == states.SUCCESS
    assert conducted.notes(tmp_path) == ["m a", "m b"]
    stages = ("compilation", "preparation", "validation", "running")
    events = [(f"{stage}_{end}", "me") for stage in stages for end in ("start", "end")]
    assert told == [*events, ("job_consumed", None)]
    [seconds] = left
    assert 0 < seconds <= impl_executor.ExecutorConductor.CLAIM_SECONDS


def test_conductor_runs_at_most_max_simultaneous_jobs(
    store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    marks = ["0", "1", "2"]
    for mark in marks:
        conducted.GATES[mark], conducted.BEGUN[mark] = threading.Event(), threading.Event()
        told = {"folder": str(tmp_path), "mark": mark}
        conducted.post(board, store, conducted.gated, inputs=told)
    conductor = backends.fetch("nonblocking", "me", board, persistence=store,
                               max_simultaneous_jobs=2)  # fmt: skip
    with running(conductor):
        until(lambda: [conducted.BEGUN[mark].is_set() for mark in marks] == [True, True, False])
        assert len(list(board.iterjobs(only_unclaimed=True))) == 1
        conducted.GATES["0"].set()
        until(conducted.BEGUN["2"].is_set)
        conducted.GATES["1"].set()
        conducted.GATES["2"].set()
        until(lambda: board.job_count == 0)


def test_job_with_highest_priority_runs_first(
    store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    for mark in ("normal", "low", "very_high", "high"):
        told = {"folder": str(tmp_path), "mark": mark}
        conducted.post(board, store, conducted.plain, inputs=told, priority=mark)
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    conductor.run(max_dispatches=3)
    assert not conductor.dispatching
    ran = [line.partition(" ")[0] for line in conducted.notes(tmp_path)[::2]]
    assert ran == ["very_high", "high", "normal"]
    assert [job.state for job in board.iterjobs()] == [states.UNCLAIMED]


# Results of jobs.


@pytest.mark.parametrize("kind", ["value", "execution"])
def test_job_of_failed_flow_is_consumed(
    kind: str, store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The flow has ended, so the job needs no further run."""
    job, uuid = conducted.post(board, store, conducted.failing, inputs={**inputs, "kind": kind})
    impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and state_of(store, uuid) == states.REVERTED
    undone = ["m undone fails", "m undone a"]
    assert conducted.notes(tmp_path) == ["m a", "m fails", *undone]


def test_job_of_flow_with_missing_inputs_is_consumed(
    store: persistence.Backend, board: jobs.JobBoard
) -> None:
    job, uuid = conducted.post(board, store, conducted.plain)
    impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and state_of(store, uuid) is None


def test_jobs_are_abandoned_while_the_broker_is_unreachable(
    store: persistence.Backend, board: jobs.NotifyingJobBoard, inputs: Any
) -> None:
    """After an abandoned job the conductor pauses before it claims the next one."""
    posted = [conducted.post(board, store, conducted.plain, inputs=inputs) for _ in range(3)]
    options = {"url": f"redis://127.0.0.1:{free_port()}/0"}
    conductor = impl_blocking.BlockingConductor(
        "me", board, persistence=store, engine="workers", engine_options=options
    )
    claimed: list[float] = []
    abandoned: list[float] = []
    board.notifier.register("CLAIMED", lambda event, details: claimed.append(time.monotonic()))
    conductor.notifier.register(
        "job_abandoned", lambda event, details: abandoned.append(time.monotonic())
    )
    with running(conductor):
        until(lambda: len(claimed) > 1)
    assert claimed[1] - abandoned[0] > 0.4
    assert board.job_count == len(posted)
    assert {state_of(store, uuid) for _, uuid in posted} == {None}


def test_inputs_of_job_override_inputs_of_flow(
    store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    book = models.LogBook("b")
    flow = models.FlowDetail("f")
    flow.meta["store"] = {"folder": str(tmp_path), "mark": "of the flow"}
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    engines.save_factory_details(flow, conducted.plain, (), {}, backend=store)
    # 'flow_uuid' is optional, because the logbook has one flow.
    board.post("x", book, details={"store": {"mark": "of the job"}})
    impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=1)
    assert conducted.notes(tmp_path) == ["of the job a", "of the job b"]


@pytest.mark.parametrize("flows", [0, 1, 2, None])
def test_job_without_a_runnable_flow_is_trashed(
    flows: int | None,
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its logbook is missing or empty, or has a flow without factory or two flows."""
    book = None
    if flows is not None:
        book = models.LogBook("b")
        for _ in range(flows):
            book.add(models.FlowDetail("f"))
        with contextlib.closing(store.get_connection()) as connection:
            connection.save_logbook(book)
    trashed = board.post("bad", book)
    job, _ = conducted.post(board, store, conducted.plain, inputs=inputs)
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    told: list[str] = []
    conductor.notifier.register("job_trashed", lambda event, details: told.append(event))
    conductor.run(max_dispatches=2)
    assert trashed.state == job.state == states.COMPLETE and told == ["job_trashed"]
    assert conducted.notes(tmp_path) == ["m a", "m b"]
    why = {
        0: "must contain a flow",
        1: "does not record the factory of its flow",
        2: "contains 2 flows",
        None: "no log",
    }
    assert why[flows] in caplog.text


def test_stopped_conductor_suspends_flow_and_abandons_job(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The next conductor resumes the flow after its saved tasks."""
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    job, uuid = conducted.post(board, store, conducted.gated, inputs=inputs)
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    told: list[str] = []
    conductor.notifier.register("*", lambda event, details: told.append(event))
    with running(conductor):
        until(conducted.BEGUN["m"].is_set)
        conductor.stop()
        assert conductor.dispatching and not conductor.wait(0.05)
        conducted.GATES["m"].set()
    assert told[-1] == "job_abandoned" and state_of(store, uuid) == states.SUSPENDED
    assert job.state == states.UNCLAIMED
    impl_blocking.BlockingConductor("you", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and state_of(store, uuid) == states.SUCCESS
    assert conducted.notes(tmp_path) == ["m before", "m gate", "m after"]
    # A stopped conductor starts no job.
    conducted.post(board, store, conducted.plain, inputs=inputs)
    conductor.run()
    assert board.job_count == 1


def test_job_claimed_again_does_not_rerun_a_finished_flow(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The first conductor died after it saved the result and before it consumed the job."""
    job, uuid = conducted.post(board, store, conducted.failing, inputs={**inputs, "kind": "value"})
    board.claim(job, "dead", expiry=0.01)
    with contextlib.closing(store.get_connection()) as connection:
        engine = engines.load_from_detail(connection.get_flow_details(uuid), backend=store)
    with pytest.raises(ValueError, match="oops"):
        engine.run()
    before = conducted.notes(tmp_path)
    until(lambda: job.state == states.UNCLAIMED)
    impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and state_of(store, uuid) == states.REVERTED
    assert conducted.notes(tmp_path) == before


def test_flow_that_ends_after_its_claim_expired_is_not_run_again(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The claim expires during the run, and the engine of the second run waits for the first."""
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    job, uuid = conducted.post(
        board, store, conducted.gated_failing, inputs={**inputs, "kind": "value"}
    )
    board.claim(job, "slow", expiry=0.01)
    with contextlib.closing(store.get_connection()) as connection:
        slow = engines.load_from_detail(connection.get_flow_details(uuid), backend=store)
    conductor = backends.fetch(
        "blocking", "me", board, persistence=store, engine_options={"on_busy": "wait"}
    )
    with futures.ThreadPoolExecutor(1) as pool:
        running_slow = pool.submit(slow.run)
        until(conducted.BEGUN["m"].is_set)
        with running(conductor):
            until(lambda: any(found.claims > 1 for found in board.iterjobs()))
            conducted.GATES["m"].set()
            with pytest.raises(ValueError, match="oops"):
                running_slow.result(60)
            until(is_done(job))
    assert state_of(store, uuid) == states.REVERTED
    assert conducted.notes(tmp_path) == ["m gate", "m fails", "m undone fails", "m undone gate"]


def test_flow_with_a_foreign_lease_is_run_after_its_release(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """The conductor runs other jobs in the meantime."""
    busy, uuid = conducted.post(board, store, conducted.plain, inputs=inputs, priority="high")
    told = {**inputs, "mark": "other"}
    job, _ = conducted.post(board, store, conducted.plain, inputs=told)
    with contextlib.closing(store.get_connection()) as connection:
        lease = connection.acquire_lease(uuid, "somebody", 60)
        with running(impl_blocking.BlockingConductor("me", board, persistence=store)):
            until(is_done(job))
            assert busy.state != states.COMPLETE
            connection.release_lease(lease)
            until(is_done(busy))
    assert sorted(conducted.notes(tmp_path)) == ["m a", "m b", "other a", "other b"]


@pytest.mark.parametrize("error", [ImportError("no module"), AttributeError("no name")], ids=repr)
def test_job_is_abandoned_if_its_code_cannot_be_loaded(
    error: Exception,
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
) -> None:
    job, _ = conducted.post(board, store, conducted.interrupted, inputs=inputs)
    conducted.RAISED_ONCE["factory"] = error
    impl_blocking.BlockingConductor("old", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.UNCLAIMED
    impl_blocking.BlockingConductor("new", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and conducted.notes(tmp_path) == ["m a", "m b"]


INTERRUPTIONS = [SystemExit(3), KeyboardInterrupt("interrupted")]


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
@pytest.mark.parametrize("where", ["task", "factory"])
def test_job_interrupted_in_a_thread_is_run_again(
    where: str,
    error: BaseException,
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
) -> None:
    """The only thread of the conductor runs the other job."""
    job, uuid = conducted.post(board, store, conducted.interrupted, inputs=inputs, priority="high")
    other, _ = conducted.post(board, store, conducted.plain, inputs={**inputs, "mark": "n"})
    conducted.RAISED_ONCE[where] = error
    conductor = backends.fetch(
        "nonblocking", "me", board, persistence=store, max_simultaneous_jobs=1
    )
    with running(conductor):
        until(lambda: other.state == job.state == states.COMPLETE)
    assert state_of(store, uuid) == states.SUCCESS
    assert conducted.notes(tmp_path)[-1] == "m b"


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
@pytest.mark.parametrize("where", ["task", "factory"])
def test_interruption_in_blocking_conductor_is_raised_and_abandons_job(
    where: str,
    error: BaseException,
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
) -> None:
    job, uuid = conducted.post(board, store, conducted.interrupted, inputs=inputs)
    conducted.RAISED_ONCE[where] = error
    with pytest.raises(type(error)):
        impl_blocking.BlockingConductor("me", board, persistence=store).run()
    assert job.state == states.UNCLAIMED
    assert state_of(store, uuid) == (states.SUSPENDED if where == "task" else None)
    impl_blocking.BlockingConductor("you", board, persistence=store).run(max_dispatches=1)
    assert job.state == states.COMPLETE and conducted.notes(tmp_path) == ["m a", "m b"]


def test_flow_suspended_by_command_is_not_resumed_by_the_conductor(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    """Its job is consumed, so no conductor resumes it."""
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    job, uuid = conducted.post(board, store, conducted.gated, inputs=inputs)
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    ran: list[engines.Engine] = []
    conductor.notifier.register(
        "running_start", lambda event, details: ran.append(details["engine"])
    )
    with contextlib.closing(store.get_connection()) as connection, running(conductor):
        until(conducted.BEGUN["m"].is_set)
        connection.send_command(uuid, commands.FlowCommand("suspend", "hold it"))
        until(lambda: ran[0].storage.get_flow_state() == states.SUSPENDING)
        conducted.GATES["m"].set()
        until(is_done(job))
        assert state_of(store, uuid) == states.SUSPENDED
        assert conducted.notes(tmp_path) == ["m before", "m gate"]
        engines.load_from_detail(connection.get_flow_details(uuid), backend=store).run()
    assert conducted.notes(tmp_path) == ["m before", "m gate", "m after"]


@pytest.mark.parametrize("damage", ["priority = 7", "created = 1e300"])
def test_unreadable_job_row_is_skipped_and_logged_once(
    damage: str,
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, _ = conducted.post(board, store, conducted.plain, inputs=inputs, priority="high")
    with contextlib.closing(sqlite3.connect(tmp_path / "flows.db")) as raw, raw:
        raw.execute(f"UPDATE wbe_jobs SET {damage} WHERE uuid = ?", (bad.uuid,))
    for mark in ("x", "y"):
        conducted.post(board, store, conducted.plain, inputs={**inputs, "mark": mark})
    impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=2)
    assert conducted.notes(tmp_path) == ["x a", "x b", "y a", "y b"]
    assert list(board.iterjobs()) == [] and board.job_count == 1
    assert caplog.text.count(f"cannot read job {bad.uuid}") == 1


# Claims.


class ShortClaimConductor(impl_blocking.BlockingConductor):
    """Conductor with short claims."""

    CLAIM_SECONDS = 0.6


def test_claim_is_renewed_while_the_flow_runs(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any, tmp_path: Path
) -> None:
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    job, _ = conducted.post(board, store, conducted.gated, inputs=inputs)
    with running(ShortClaimConductor("me", board, persistence=store)):
        until(conducted.BEGUN["m"].is_set)
        first = job.last_modified
        for _ in range(20):
            with pytest.raises(exceptions.NotFound):
                board.wait(timeout=0.1)
        assert board.find_owner(job) == "me" and job.last_modified == first
        conducted.GATES["m"].set()
        until(is_done(job))


def test_conductor_renews_claims_for_the_expiry_of_its_board(
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Octavia configures the `claim` of its board in this way."""
    extended, seen = [], []
    extend = stored.StoredJob.extend_expiry

    def spy(job: stored.StoredJob, seconds: float) -> bool:
        extended.append(seconds)
        seen.append(job.expires_in())
        return extend(job, seconds)

    monkeypatch.setattr(stored.StoredJob, "extend_expiry", spy)
    monkeypatch.setattr(board, "claim", functools.partial(board.claim, expiry=2.5))
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    job, _ = conducted.post(board, store, conducted.gated, inputs=inputs)
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    assert conductor.CLAIM_SECONDS > 2.5
    with running(conductor):
        until(lambda: len(extended) == 2)
        conducted.GATES["m"].set()
        until(is_done(job))
    assert set(extended) == {2.5} and all(0 < seconds <= 2.5 for seconds in seen)


def test_flow_is_suspended_when_its_claim_is_lost(
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator trashed the job. The conductor continues with other jobs."""
    conducted.GATES["m"], conducted.BEGUN["m"] = threading.Event(), threading.Event()
    _, uuid = conducted.post(board, store, conducted.gated, inputs=inputs)
    with running(ShortClaimConductor("me", board, persistence=store)):
        until(conducted.BEGUN["m"].is_set)
        [found] = board.iterjobs()
        board.trash(found, "me")
        until(lambda: "lost the claim on" in caplog.text)
        conducted.GATES["m"].set()
        until(lambda: state_of(store, uuid) == states.SUSPENDED)
        other, _ = conducted.post(board, store, conducted.plain, inputs={**inputs, "mark": "n"})
        until(is_done(other))
    assert "m after" not in conducted.notes(tmp_path)


def test_flow_does_not_start_if_claim_is_lost_while_factory_runs(
    store: persistence.Backend,
    board: jobs.JobBoard,
    inputs: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, uuid = conducted.post(board, store, conducted.slowly_made, inputs=inputs)
    monkeypatch.setitem(conducted.GATES, "factory", threading.Event())
    monkeypatch.setitem(conducted.BEGUN, "factory", threading.Event())
    with running(ShortClaimConductor("me", board, persistence=store)):
        until(conducted.BEGUN["factory"].is_set)
        [found] = board.iterjobs()
        board.trash(found, "me")
        until(lambda: "lost the claim on" in caplog.text)
        conducted.GATES["factory"].set()
        other, _ = conducted.post(board, store, conducted.plain, inputs={**inputs, "mark": "n"})
        until(is_done(other))
    assert state_of(store, uuid) is None and conducted.notes(tmp_path) == ["n a", "n b"]


def test_conductor_reconnects_its_board(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any
) -> None:
    job, _ = conducted.post(board, store, conducted.plain, inputs=inputs)
    board.close()
    conductor = impl_blocking.BlockingConductor("me", board, persistence=store)
    with running(conductor):
        until(lambda: board.connected)
        until(is_done(job))
        board.close()
        until(lambda: board.connected)
    conductor.close()
    assert not board.connected


def test_job_with_non_dict_details_is_trashed_and_logged(
    tmp_path: Path, inputs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        stores.backend(f"sqlite:///{tmp_path}/other.db") as store,
        boards.backend("b", "sql", persistence=store) as board,
    ):
        job, _ = conducted.post(board, store, conducted.plain, inputs=inputs)
        with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as raw:
            raw.execute("UPDATE wbe_jobs SET details = '[1]'")
            raw.commit()
        impl_blocking.BlockingConductor("me", board, persistence=store).run(max_dispatches=1)
        assert job.state == states.COMPLETE and board.job_count == 0
    assert "must be a dict, got list" in caplog.text


# Subclasses.


def test_subclass_hooks_add_listeners_and_observe_done_jobs(
    store: persistence.Backend, board: jobs.JobBoard, inputs: Any
) -> None:
    """TaskFlow services override these hooks. This one deletes the logbook of a job."""
    heard: list[Any] = []

    class Conductor(impl_blocking.BlockingConductor):
        def _listeners_from_job(self, job: jobs.Job, engine: Any) -> Any:
            found = super()._listeners_from_job(job, engine)
            values: Any = heard
            return [*found, capturing.CaptureListener(engine, values=values)]

        def _on_job_done(self, job: jobs.Job, fut: futures.Future[bool]) -> None:
            super()._on_job_done(job, fut)
            assert fut.result() and job.state == states.COMPLETE
            with contextlib.closing(store.get_connection()) as connection:
                connection.destroy_logbook(job.book_uuid or "")

    _, uuid = conducted.post(board, store, conducted.plain, inputs=inputs)
    Conductor("me", board, persistence=store).run(max_dispatches=1)
    assert any("a" in str(line) for line in heard)
    with pytest.raises(exceptions.NotFound):
        state_of(store, uuid)


def test_conductor_describes_itself_with_name_host_and_pid(board: jobs.JobBoard) -> None:
    told = impl_blocking.BlockingConductor("me", board).conductor.to_dict()
    assert told["kind"] == "conductor" and told["name"].startswith("me@")
    assert set(told["metadata"]) == {"hostname", "pid"}


@pytest.mark.parametrize(
    ("kind", "options", "error", "text"),
    [
        ("bloking", {}, exceptions.NotFound, "'bloking' .did you mean 'blocking'"),
        ("blocking", {"wait_timeout": "soon"}, ValueError, "wait_timeout.*'soon'"),
        ("blocking", {"wait_timeout": 0}, ValueError, "above 0, got 0"),
        ("nonblocking", {"executor_factory": 7}, ValueError, "must be callable, got 7"),
        (
            "blocking",
            {"persistence": "sqlite:///x"},
            TypeError,
            "persistence must be a Backend.* str",
        ),
        ("blocking", {"engine": "serail"}, exceptions.NotFound, "'serail' .did you mean 'serial'"),
        ("blocking", {"engine": "parallel://?max_workers=0"}, ValueError, "max_workers must .*'0'"),
        (
            "blocking",
            {"engine_options": {"on_bussy": "wait"}},
            ValueError,
            "'on_bussy' .did you mean 'on_busy'",
        ),
    ],
    ids=[
        "kind",
        "wait_timeout text",
        "wait_timeout zero",
        "executor_factory",
        "persistence",
        "engine",
        "engine URL",
        "engine option",
    ],
)
def test_invalid_conductor_options_are_rejected(
    kind: str, options: Any, error: type[Exception], text: str, board: jobs.JobBoard
) -> None:
    with pytest.raises(error, match=text):
        backends.fetch(kind, "me", board, **options)


def test_conductor_requires_a_job_board() -> None:
    board: Any = "sqlite:///jobs.db"
    with pytest.raises(TypeError, match="jobboard must be a JobBoard, got str"):
        backends.fetch("blocking", "me", board)


def test_executor_conductor_requires_executor_factory(board: jobs.JobBoard) -> None:
    conductor = impl_executor.ExecutorConductor("me", board)
    with pytest.raises(exceptions.NotImplementedError, match="requires executor_factory"):
        conductor.run()
    assert not conductor.dispatching
    assert impl_nonblocking.NonBlockingConductor.MAX_SIMULTANEOUS_JOBS > 1
