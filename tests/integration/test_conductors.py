"""Jobs and flows that conductors run."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted, engine_threads
from tests.support.conducted import running
from tests.support.server_kinds import free_port
from tests.support.waiting import until
from wbengine import engines, exceptions, states
from wbengine.conductors import backends
from wbengine.conductors.backends import impl_blocking, impl_executor, impl_nonblocking
from wbengine.jobs import _stored
from wbengine.jobs import base as jobs
from wbengine.listeners import capturing
from wbengine.persistence import _commands, models
from wbengine.persistence import base as persistence

KINDS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "nonblocking": {"max_simultaneous_jobs": 3},
    "executor": {"executor_factory": lambda: futures.ThreadPoolExecutor(2)},
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@dataclass
class Site:
    """A store, its job board, and the folder of the notes that flows write."""

    store: persistence.Backend
    board: jobs.JobBoard
    folder: Path

    def post(
        self, factory: Any, *, mark: str = "m", priority: str = "normal", **inputs: Any
    ) -> tuple[jobs.Job, str]:
        """Post a flow. Return its job and its uuid."""
        inputs = {"folder": str(self.folder), "mark": mark, **inputs}
        return conducted.post(self.board, self.store, factory, inputs=inputs, priority=priority)

    def gate(self, mark: str = "m") -> engine_threads.Gate:
        """Create the gate of the flow with this mark."""
        gate = engine_threads.Gate()
        conducted.GATES[mark], conducted.BEGUN[mark] = gate.let, gate.inside
        return gate

    def conductor(self, kind: Any = impl_blocking.BlockingConductor, name: str = "me") -> Any:
        return kind(name, self.board, persistence=self.store)

    def run_jobs(self, count: int = 1, *, name: str = "me") -> None:
        self.conductor(name=name).run(max_dispatches=count)

    def connection(self) -> contextlib.AbstractContextManager[persistence.Connection]:
        return contextlib.closing(self.store.get_connection())

    def state_of(self, uuid: str) -> str | None:
        with self.connection() as connection:
            return connection.get_flow_details(uuid, lazy=True).state

    def notes(self) -> list[str]:
        return conducted.notes(self.folder)


@pytest.fixture
def site(store: persistence.Backend, board: jobs.JobBoard, tmp_path: Path) -> Site:
    return Site(store, board, tmp_path)


def is_done(job: jobs.Job) -> Callable[[], bool]:
    return lambda: job.state == states.COMPLETE


@pytest.mark.parametrize("kind", KINDS)
def test_posted_flow_is_run_and_its_job_consumed(kind: str, site: Site) -> None:
    """The conductor notifies each stage in order while it owns the claim."""
    conductor = backends.fetch(kind, "me", site.board, persistence=site.store, **KINDS[kind])
    told: list[Any] = []
    left: list[float] = []

    def tell(event: str, details: dict[str, Any]) -> None:
        assert details["conductor"] is conductor
        told.append((event, site.board.find_owner(details["job"])))
        if event == "compilation_start":
            left.append(details["job"].expires_in())

    conductor.notifier.register("*", tell)
    job, uuid = site.post(conducted.plain)
    with running(conductor):
        until(is_done(job))
    assert conductor.wait(0)
    assert site.state_of(uuid) == states.SUCCESS
    assert site.notes() == ["m a", "m b"]
    stages = ("compilation", "preparation", "validation", "running")
    events = [(f"{stage}_{end}", "me") for stage in stages for end in ("start", "end")]
    assert told == [*events, ("job_consumed", None)]
    [seconds] = left
    assert 0 < seconds <= impl_executor.ExecutorConductor.CLAIM_SECONDS


def test_conductor_runs_at_most_max_simultaneous_jobs(site: Site) -> None:
    marks = ["0", "1", "2"]
    gates = {mark: site.gate(mark) for mark in marks}
    for mark in marks:
        site.post(conducted.gated, mark=mark)
    conductor = backends.fetch("nonblocking", "me", site.board, persistence=site.store,
                               max_simultaneous_jobs=2)  # fmt: skip
    with running(conductor):
        until(lambda: [gate.inside.is_set() for gate in gates.values()] == [True, True, False])
        assert len(list(site.board.iterjobs(only_unclaimed=True))) == 1
        gates["0"].let.set()
        until(gates["2"].inside.is_set)
        gates["1"].let.set()
        gates["2"].let.set()
        until(lambda: site.board.job_count == 0)


def test_job_with_highest_priority_runs_first(site: Site) -> None:
    for mark in ("normal", "low", "very_high", "high"):
        site.post(conducted.plain, mark=mark, priority=mark)
    conductor = site.conductor()
    conductor.run(max_dispatches=3)
    assert not conductor.dispatching
    ran = [line.partition(" ")[0] for line in site.notes()[::2]]
    assert ran == ["very_high", "high", "normal"]
    assert [job.state for job in site.board.iterjobs()] == [states.UNCLAIMED]


# Results of jobs.


@pytest.mark.parametrize("kind", ["value", "execution"])
def test_job_of_failed_flow_is_consumed(kind: str, site: Site) -> None:
    """The flow has ended, so the job needs no further run."""
    job, uuid = site.post(conducted.failing, kind=kind)
    site.run_jobs()
    assert job.state == states.COMPLETE and site.state_of(uuid) == states.REVERTED
    undone = ["m undone fails", "m undone a"]
    assert site.notes() == ["m a", "m fails", *undone]


def test_job_of_flow_with_missing_inputs_is_consumed(site: Site) -> None:
    job, uuid = conducted.post(site.board, site.store, conducted.plain)
    site.run_jobs()
    assert job.state == states.COMPLETE and site.state_of(uuid) is None


def test_jobs_are_abandoned_while_the_broker_is_unreachable(site: Site) -> None:
    """After an abandoned job the conductor pauses before it claims the next one."""
    posted = [site.post(conducted.plain) for _ in range(3)]
    options = {"url": f"redis://127.0.0.1:{free_port()}/0"}
    conductor = impl_blocking.BlockingConductor(
        "me", site.board, persistence=site.store, engine="workers", engine_options=options
    )
    claimed: list[float] = []
    abandoned: list[float] = []
    site.board.notifier.register("CLAIMED", lambda event, details: claimed.append(time.monotonic()))
    conductor.notifier.register(
        "job_abandoned", lambda event, details: abandoned.append(time.monotonic())
    )
    with running(conductor):
        until(lambda: len(claimed) > 1)
    assert claimed[1] - abandoned[0] > 0.4
    assert site.board.job_count == len(posted)
    assert {site.state_of(uuid) for _, uuid in posted} == {None}


def test_inputs_of_job_override_inputs_of_flow(site: Site) -> None:
    book = models.LogBook("b")
    flow = models.FlowDetail("f")
    flow.meta["store"] = {"folder": str(site.folder), "mark": "of the flow"}
    book.add(flow)
    with site.connection() as connection:
        connection.save_logbook(book)
    engines.save_factory_details(flow, conducted.plain, (), {}, backend=site.store)
    # 'flow_uuid' is optional, because the logbook has one flow.
    site.board.post("x", book, details={"store": {"mark": "of the job"}})
    site.run_jobs()
    assert site.notes() == ["of the job a", "of the job b"]


@pytest.mark.parametrize("flows", [0, 1, 2, None])
def test_job_without_a_runnable_flow_is_trashed(
    flows: int | None, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Its logbook is missing or empty, or has a flow without factory or two flows."""
    book = None
    if flows is not None:
        book = models.LogBook("b")
        for _ in range(flows):
            book.add(models.FlowDetail("f"))
        with site.connection() as connection:
            connection.save_logbook(book)
    trashed = site.board.post("bad", book)
    job, _ = site.post(conducted.plain)
    conductor = site.conductor()
    events: list[str] = []
    conductor.notifier.register("job_trashed", lambda event, details: events.append(event))
    conductor.run(max_dispatches=2)
    assert trashed.state == job.state == states.COMPLETE and events == ["job_trashed"]
    assert site.notes() == ["m a", "m b"]
    why = {
        0: "must contain a flow",
        1: "does not record the factory of its flow",
        2: "contains 2 flows",
        None: "no log",
    }
    assert why[flows] in caplog.text


def test_stopped_conductor_suspends_flow_and_abandons_job(site: Site) -> None:
    """The next conductor resumes the flow after its saved tasks."""
    gate = site.gate()
    job, uuid = site.post(conducted.gated)
    conductor = site.conductor()
    events: list[str] = []
    conductor.notifier.register("*", lambda event, details: events.append(event))
    with running(conductor):
        until(gate.inside.is_set)
        conductor.stop()
        assert conductor.dispatching and not conductor.wait(0.05)
        gate.let.set()
    assert events[-1] == "job_abandoned" and site.state_of(uuid) == states.SUSPENDED
    assert job.state == states.UNCLAIMED
    site.run_jobs(name="you")
    assert job.state == states.COMPLETE and site.state_of(uuid) == states.SUCCESS
    assert site.notes() == ["m before", "m gate", "m after"]
    # A stopped conductor starts no job.
    site.post(conducted.plain)
    conductor.run()
    assert site.board.job_count == 1


def test_job_claimed_again_does_not_rerun_a_finished_flow(site: Site) -> None:
    """The first conductor died after it saved the result and before it consumed the job."""
    job, uuid = site.post(conducted.failing, kind="value")
    site.board.claim(job, "dead", expiry=0.01)
    with site.connection() as connection:
        engine = engines.load_from_detail(connection.get_flow_details(uuid), backend=site.store)
    with pytest.raises(ValueError, match="oops"):
        engine.run()
    before = site.notes()
    until(lambda: job.state == states.UNCLAIMED)
    site.run_jobs()
    assert job.state == states.COMPLETE and site.state_of(uuid) == states.REVERTED
    assert site.notes() == before


def test_flow_that_ends_after_its_claim_expired_is_not_run_again(site: Site) -> None:
    """The claim expires during the run, and the engine of the second run waits for the first."""
    gate = site.gate()
    job, uuid = site.post(conducted.gated_failing, kind="value")
    site.board.claim(job, "slow", expiry=0.01)
    with site.connection() as connection:
        slow = engines.load_from_detail(connection.get_flow_details(uuid), backend=site.store)
    conductor = backends.fetch(
        "blocking", "me", site.board, persistence=site.store, engine_options={"on_busy": "wait"}
    )
    with futures.ThreadPoolExecutor(1) as pool:
        running_slow = pool.submit(slow.run)
        until(gate.inside.is_set)
        with running(conductor):
            until(lambda: any(posted.claims > 1 for posted in site.board.iterjobs()))
            gate.let.set()
            with pytest.raises(ValueError, match="oops"):
                running_slow.result(60)
            until(is_done(job))
    assert site.state_of(uuid) == states.REVERTED
    assert site.notes() == ["m gate", "m fails", "m undone fails", "m undone gate"]


@pytest.mark.parametrize("stage", ["compilation", "preparation"])
def test_flow_that_ends_elsewhere_before_its_stage_is_not_run_again(stage: str, site: Site) -> None:
    """Another engine runs the flow after the conductor has read it."""
    job, uuid = site.post(conducted.failing, kind="value")
    site.board.claim(job, "dead", expiry=0.01)
    until(lambda: job.state == states.UNCLAIMED)
    with site.connection() as connection:
        other = engines.load_from_detail(connection.get_flow_details(uuid), backend=site.store)

    def run(event: str, details: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="oops"):
            other.run()

    conductor = site.conductor()
    conductor.notifier.register(f"{stage}_end", run)
    conductor.run(max_dispatches=1)
    assert job.state == states.COMPLETE and site.state_of(uuid) == states.REVERTED
    assert site.notes() == ["m a", "m fails", "m undone fails", "m undone a"]


def test_flow_with_a_foreign_lease_is_run_after_its_release(site: Site) -> None:
    """The conductor runs other jobs in the meantime."""
    busy, uuid = site.post(conducted.plain, priority="high")
    job, _ = site.post(conducted.plain, mark="other")
    with site.connection() as connection:
        lease = connection.acquire_lease(uuid, "somebody", 60)
        with running(site.conductor()):
            until(is_done(job))
            assert busy.state != states.COMPLETE
            connection.release_lease(lease)
            until(is_done(busy))
    assert sorted(site.notes()) == ["m a", "m b", "other a", "other b"]


@pytest.mark.parametrize("error", [ImportError("no module"), AttributeError("no name")], ids=repr)
def test_job_is_abandoned_if_its_code_cannot_be_loaded(error: Exception, site: Site) -> None:
    job, _ = site.post(conducted.interrupted)
    conducted.RAISED_ONCE["factory"] = error
    site.run_jobs(name="old")
    assert job.state == states.UNCLAIMED
    site.run_jobs(name="new")
    assert job.state == states.COMPLETE and site.notes() == ["m a", "m b"]


@pytest.mark.parametrize("body", ["order = (", "raise KeyError('SHOP_URL')"])
def test_job_is_abandoned_if_the_module_of_its_factory_raises(
    body: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong release: the flow waits for the corrected one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"released_{tmp_path.name}"
    module = tmp_path / f"{name}.py"

    def release(code: str) -> None:
        module.write_text(code)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()

    correct = "from tests.support.conducted import plain\n\ndef order():\n    return plain()\n"
    release(correct)
    job, _ = site.post(importlib.import_module(name).order)
    release(f"{body}\n")
    site.run_jobs()
    assert job.state == states.UNCLAIMED
    release(correct)
    site.run_jobs()
    assert job.state == states.COMPLETE and site.notes() == ["m a", "m b"]


def test_job_behind_many_unloadable_ones_is_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are due again at once, as after a pause."""
    for limit in "FIRST", "MAX":
        monkeypatch.setattr(impl_executor, f"_{limit}_PAUSE_SECONDS", 0.0)
    for _ in range(40):
        site.post(conducted.interrupted)
    job, _ = site.post(conducted.plain, mark="behind")
    with monkeypatch.context() as patch:
        patch.setattr(conducted, "interrupted", missing_factory)
        with running(site.conductor(name="old")):
            until(is_done(job))
    site.run_jobs(40, name="new")
    assert site.board.job_count == 0


def missing_factory() -> Any:
    raise ImportError("no module")


def failing_factory() -> Any:
    raise ValueError("no variable SHOP_URL")


@pytest.mark.parametrize("release", [failing_factory, conducted.failing])
@pytest.mark.parametrize("is_begun", [True, False])
def test_flow_in_progress_keeps_its_job_if_code_cannot_run_it(
    is_begun: bool, release: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factory fails, or a new task requires an input. A flow that never ran loses its job."""
    job, _ = site.post(conducted.interrupted)
    if is_begun:
        conducted.RAISED_ONCE["task"] = SystemExit(3)
        with pytest.raises(SystemExit):
            site.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr(conducted, "interrupted", release)
        site.run_jobs(name="new")
    assert job.state == (states.UNCLAIMED if is_begun else states.COMPLETE)
    if is_begun:
        site.run_jobs(name="corrected")
        assert job.state == states.COMPLETE and site.notes() == ["m a", "m b"]


def test_requested_flow_keeps_its_job_if_its_factory_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = engines.submit(
        conducted.greeting, inputs={"name": "x"}, backend=site.store, board=site.board
    )
    handle.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(conducted, "greeting", failing_factory)
        site.run_jobs()
    site.run_jobs()
    with pytest.raises(exceptions.Cancelled):
        handle.result(60)


INTERRUPTIONS = [SystemExit(3), KeyboardInterrupt("interrupted")]


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
@pytest.mark.parametrize("where", ["task", "factory"])
def test_job_interrupted_in_a_thread_is_run_again(
    where: str, error: BaseException, site: Site
) -> None:
    """The only thread of the conductor runs the other job."""
    job, uuid = site.post(conducted.interrupted, priority="high")
    other, _ = site.post(conducted.plain, mark="n")
    conducted.RAISED_ONCE[where] = error
    conductor = backends.fetch(
        "nonblocking", "me", site.board, persistence=site.store, max_simultaneous_jobs=1
    )
    with running(conductor):
        until(lambda: other.state == job.state == states.COMPLETE)
    assert site.state_of(uuid) == states.SUCCESS
    assert site.notes()[-1] == "m b"


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
@pytest.mark.parametrize("where", ["task", "factory"])
def test_interruption_in_blocking_conductor_is_raised_and_abandons_job(
    where: str, error: BaseException, site: Site
) -> None:
    job, uuid = site.post(conducted.interrupted)
    conducted.RAISED_ONCE[where] = error
    with pytest.raises(type(error)):
        site.conductor().run()
    assert job.state == states.UNCLAIMED
    assert site.state_of(uuid) == (states.SUSPENDED if where == "task" else None)
    site.run_jobs(name="you")
    assert job.state == states.COMPLETE and site.notes() == ["m a", "m b"]


def test_flow_suspended_by_command_is_not_resumed_by_the_conductor(site: Site) -> None:
    """Its job is consumed, so no conductor resumes it."""
    gate = site.gate()
    job, uuid = site.post(conducted.gated)
    conductor = site.conductor()
    ran: list[engines.Engine] = []
    conductor.notifier.register(
        "running_start", lambda event, details: ran.append(details["engine"])
    )
    with site.connection() as connection, running(conductor):
        until(gate.inside.is_set)
        connection.send_command(uuid, _commands.FlowCommand("suspend", "hold it"))
        until(lambda: ran[0].storage.get_flow_state() == states.SUSPENDING)
        gate.let.set()
        until(is_done(job))
        assert site.state_of(uuid) == states.SUSPENDED
        assert site.notes() == ["m before", "m gate"]
        engines.load_from_detail(connection.get_flow_details(uuid), backend=site.store).run()
    assert site.notes() == ["m before", "m gate", "m after"]


@pytest.mark.parametrize("damage", ["priority = 7", "created = 1e300"])
def test_unreadable_job_row_is_skipped_and_logged_once(
    damage: str, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    bad, _ = site.post(conducted.plain, priority="high")
    with contextlib.closing(sqlite3.connect(site.folder / "flows.db")) as raw, raw:
        raw.execute(f"UPDATE wbe_jobs SET {damage} WHERE uuid = ?", (bad.uuid,))
    for mark in ("x", "y"):
        site.post(conducted.plain, mark=mark)
    site.run_jobs(2)
    assert site.notes() == ["x a", "x b", "y a", "y b"]
    assert list(site.board.iterjobs()) == [] and site.board.job_count == 1
    assert caplog.text.count(f"cannot read job {bad.uuid}") == 1


# Claims.


class ShortClaimConductor(impl_blocking.BlockingConductor):
    """Conductor with short claims."""

    CLAIM_SECONDS = 0.6


def test_claim_is_renewed_while_the_flow_runs(site: Site) -> None:
    gate = site.gate()
    job, _ = site.post(conducted.gated)
    with running(site.conductor(ShortClaimConductor)):
        until(gate.inside.is_set)
        first = job.last_modified
        for _ in range(20):
            with pytest.raises(exceptions.NotFound):
                site.board.wait(timeout=0.1)
        assert site.board.find_owner(job) == "me" and job.last_modified == first
        gate.let.set()
        until(is_done(job))


def test_conductor_renews_claims_for_the_expiry_of_its_board(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Octavia configures the `claim` of its board in this way."""
    extended, seen = [], []
    extend = _stored.StoredJob.extend_expiry

    def spy(job: _stored.StoredJob, seconds: float) -> bool:
        extended.append(seconds)
        seen.append(job.expires_in())
        return extend(job, seconds)

    monkeypatch.setattr(_stored.StoredJob, "extend_expiry", spy)
    monkeypatch.setattr(site.board, "claim_seconds", 2.5)
    gate = site.gate()
    job, _ = site.post(conducted.gated)
    conductor = site.conductor()
    assert conductor.CLAIM_SECONDS > 2.5
    with running(conductor):
        until(lambda: len(extended) == 2)
        gate.let.set()
        until(is_done(job))
    assert set(extended) == {2.5} and all(0 < seconds <= 2.5 for seconds in seen)


def test_flow_is_suspended_when_its_claim_is_lost(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator trashed the job. The conductor continues with other jobs."""
    gate = site.gate()
    _, uuid = site.post(conducted.gated)
    with running(site.conductor(ShortClaimConductor)):
        until(gate.inside.is_set)
        [claimed_job] = site.board.iterjobs()
        site.board.trash(claimed_job, "me")
        until(lambda: "lost the claim on" in caplog.text)
        gate.let.set()
        until(lambda: site.state_of(uuid) == states.SUSPENDED)
        other, _ = site.post(conducted.plain, mark="n")
        until(is_done(other))
    assert "m after" not in site.notes()


def test_flow_does_not_start_if_claim_is_lost_while_factory_runs(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, uuid = site.post(conducted.slowly_made)
    monkeypatch.setitem(conducted.GATES, "factory", threading.Event())
    monkeypatch.setitem(conducted.BEGUN, "factory", threading.Event())
    with running(site.conductor(ShortClaimConductor)):
        until(conducted.BEGUN["factory"].is_set)
        [claimed_job] = site.board.iterjobs()
        site.board.trash(claimed_job, "me")
        until(lambda: "lost the claim on" in caplog.text)
        conducted.GATES["factory"].set()
        other, _ = site.post(conducted.plain, mark="n")
        until(is_done(other))
    assert site.state_of(uuid) is None and site.notes() == ["n a", "n b"]


def test_conductor_reconnects_its_board(site: Site) -> None:
    job, _ = site.post(conducted.plain)
    site.board.close()
    conductor = site.conductor()
    with running(conductor):
        until(lambda: site.board.connected)
        until(is_done(job))
        site.board.close()
        until(lambda: site.board.connected)
    conductor.close()
    assert not site.board.connected


def test_job_with_non_dict_details_is_trashed_and_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    job, _ = site.post(conducted.plain)
    with contextlib.closing(sqlite3.connect(site.folder / "flows.db")) as raw, raw:
        raw.execute("UPDATE wbe_jobs SET details = '[1]'")
    site.run_jobs()
    assert job.state == states.COMPLETE and site.board.job_count == 0
    assert "must be a dict, got list" in caplog.text


# Subclasses.


def test_subclass_hooks_add_listeners_and_observe_done_jobs(site: Site) -> None:
    """TaskFlow services override these hooks. This one deletes the logbook of a job."""
    heard: list[Any] = []

    class Conductor(impl_blocking.BlockingConductor):
        def _listeners_from_job(self, job: jobs.Job, engine: Any) -> Any:
            listeners = super()._listeners_from_job(job, engine)
            values: Any = heard
            return [*listeners, capturing.CaptureListener(engine, values=values)]

        def _on_job_done(self, job: jobs.Job, fut: futures.Future[bool]) -> None:
            super()._on_job_done(job, fut)
            assert fut.result() and job.state == states.COMPLETE
            with site.connection() as connection:
                connection.destroy_logbook(job.book_uuid or "")

    _, uuid = site.post(conducted.plain)
    site.conductor(Conductor).run(max_dispatches=1)
    assert any("a" in str(line) for line in heard)
    with pytest.raises(exceptions.NotFound):
        site.state_of(uuid)


def test_conductor_describes_itself_with_name_host_and_pid(board: jobs.JobBoard) -> None:
    description = impl_blocking.BlockingConductor("me", board).conductor.to_dict()
    assert description["kind"] == "conductor" and description["name"].startswith("me@")
    assert set(description["metadata"]) == {"hostname", "pid"}


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
