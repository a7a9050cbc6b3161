"""Operations on stored flows, from start to prune."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.operations import flows
from tests.support.workers import until
from wbengine import engines, exceptions, operations, states
from wbengine.engines import _flow_factories
from wbengine.engines.base import Engine
from wbengine.operations import _changing, _resuming
from wbengine.persistence import _commands, _history, base, models
from wbengine.testing import run_submitted
from wbengine.types._encoding import classes

STEPS = "tests.operations.flows:steps"


def started(backend: base.Backend, failing: str = "", factory: str = STEPS, **options: Any) -> str:
    """Run a flow and return its uuid: in SUCCESS, or with a failing task in REVERTED or FAILURE."""
    flows.FAILING.update(failing)
    engine = operations.start(backend, factory, **options)
    if failing:
        with pytest.raises(ValueError, match="fails"):
            engine.run()
    else:
        engine.run()
    flows.FAILING.clear()
    flows.DONE.clear()
    return uuid_of(engine)


def suspended(backend: base.Backend, done: int = 2) -> str:
    """Return the uuid of a flow that was suspended after `done` steps."""
    engine = operations.start(backend, STEPS)
    engine.atom_notifier.register(
        states.SUCCESS, lambda *_, **__: len(flows.DONE) >= done and engine.suspend()
    )
    engine.run()
    flows.DONE.clear()
    return uuid_of(engine)


def uuid_of(engine: Engine) -> str:
    return str(engine.storage.flow_uuid)


def state(backend: base.Backend, uuid: str) -> str:
    return operations.find(backend, uuid).state


# Flows by the path of their factory. --------------------------------------------------------------


def test_factory_path_may_name_a_function_or_a_flow() -> None:
    assert _flow_factories.flow_of(STEPS).name == "steps"
    assert _flow_factories.flow_of("tests.operations.flows:flow") is flows.flow


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("tests.operations.flows", ValueError, "this module has tests.operations.flows:flow"),
        ("no_such", ValueError, "must be MODULE:FACTORY"),
        ("tests.operations.flows:", ValueError, "this module has tests.operations.flows:flow"),
        ("no_such:flow", ImportError, "no module 'no_such' found"),
        ("tests.operations.no_such:flow", ImportError, "no module 'tests.operations.no_such'"),
        ("tests.operations.flows:stepss", ImportError, "did you mean 'steps'?"),
        ("tests.operations.flows:number", exceptions.NotAFlow, "must be a flow or a function"),
        ("tests.operations.flows:nothing", exceptions.NotAFlow, "must return a flow or a task"),
        ("tests.operations.flows:broken", RuntimeError, "no flow today"),
    ],
)
def test_invalid_factory_path_is_refused_with_reason(
    path: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        _flow_factories.flow_of(path)


# Start and find. ----------------------------------------------------------------------------------


def test_started_flow_is_stored_and_found_by_id_prefix(backend: base.Backend) -> None:
    uuid = "12345678-1234-4123-8123-123456789012"
    engine = operations.start(backend, STEPS, store={"x": 1}, uuid=uuid, book="mine")
    row = operations.find(backend, "1234-"[:4])
    assert (row.uuid, row.name, row.state, row.book_name) == (uuid, "steps", "PENDING", "mine")
    engine.run()
    assert engine.storage.fetch_all() == {"x": 1, **{f"of_{name}": name for name in "abcd"}}
    with pytest.raises(exceptions.Duplicate, match=f"Flow {uuid} already exists: 'steps'"):
        operations.start(backend, STEPS, uuid=uuid)


def test_start_with_unknown_engine_option_stores_nothing(backend: base.Backend) -> None:
    with pytest.raises(ValueError, match="unknown option 'max_worker'"):
        operations.start(backend, STEPS, engine="parallel", max_worker=3)
    with backend.get_connection() as connection:
        assert list(connection.get_logbooks()) == []


def test_start_with_unencodable_inputs_stores_no_flow(store: base.Backend) -> None:
    """Otherwise `resume` would run the flow without its inputs."""
    with pytest.raises(exceptions.NotEncodable, match=r"store\['x'\]"):
        operations.start(store, STEPS, store={"x": object()})
    assert list(base.unfinished_flows(store)) == []


def test_started_flow_is_compiled_once(backend: base.Backend) -> None:
    """`load` compiles a flow once too: for thousands of tasks this takes a second."""
    engines.load(flows.counted(), backend=backend)
    once = flows.Counted.looks
    operations.start(backend, "tests.operations.flows:counted").run()
    assert flows.Counted.looks == once > 0


def test_find_error_suggests_similar_ids_and_lists_ambiguous_ones(backend: base.Backend) -> None:
    with pytest.raises(exceptions.NotFound, match="the store contains no flows"):
        operations.find(backend, "abcdef")
    one = uuid_of(operations.start(backend, STEPS, uuid="aaaabbbb-0000-4000-8000-000000000001"))
    operations.start(backend, STEPS, uuid="aaaabbbb-0000-4000-8000-000000000002")
    assert operations.find(backend, one.upper()).uuid == one
    with pytest.raises(exceptions.NotFound, match=r"did you mean aaaabbbb-.*\?"):
        operations.find(backend, "aaaabbcb")
    with pytest.raises(exceptions.NotFound, match=f"flows with this name: .*{one}"):
        operations.find(backend, "steps")
    with pytest.raises(exceptions.MultipleChoices, match=f"id 'aaaa' is ambiguous: .*{one}"):
        operations.find(backend, "aaaa")
    with pytest.raises(exceptions.NotFound, match="at least its first 4 characters, got 'aaa'"):
        operations.find(backend, "aaa")


def test_flow_is_found_by_its_uuid_with_which_many_later_ones_begin(backend: base.Backend) -> None:
    """Programs may choose uuids."""
    with backend.get_connection() as connection:
        for uuid in ("order-1", *(f"order-1{number}" for number in range(9))):
            book = models.LogBook("orders")
            book.add(models.FlowDetail("order", uuid))
            connection.save_logbook(book)
    assert operations.find(backend, "order-1").uuid == "order-1"
    with pytest.raises(exceptions.MultipleChoices, match="'order-' is ambiguous"):
        operations.find(backend, "order-")


# Resume, retry and revert. ------------------------------------------------------------------------


def failed_once(backend: base.Backend) -> str:
    return started(backend, "c", never_resolve=True)


def reverted(backend: base.Backend) -> str:
    return started(backend, "c")


@pytest.mark.parametrize(
    ("make", "before", "operation", "tasks"),
    [
        (suspended, "SUSPENDED", "resume", "cd"),
        (suspended, "SUSPENDED", "retry", "cd"),
        (failed_once, "FAILURE", "retry", "cd"),
        (reverted, "REVERTED", "retry", "abcd"),
    ],
)
def test_resume_and_retry_run_only_tasks_that_are_not_done(
    make: Any, before: str, operation: str, tasks: str, backend: base.Backend
) -> None:
    uuid = make(backend)
    assert state(backend, uuid) == before
    assert operations.plan(backend, uuid, operation) == operations.Plan((*tasks,), ())
    getattr(operations, operation)(backend, uuid).run()
    assert [*tasks] == flows.DONE
    assert state(backend, uuid) == "SUCCESS"


@pytest.mark.parametrize("make", [suspended, failed_once])
def test_revert_of_suspended_or_failed_flow_reverts_completed_tasks(
    backend: base.Backend, make: Any
) -> None:
    uuid = make(backend)
    planned = operations.plan(backend, uuid, "revert")
    assert (planned.run, planned.revert[:2]) == ((), ("a", "b"))
    engine = operations.revert(backend, uuid, reason="nobody wants it")
    with pytest.raises(Exception, match=r"nobody wants it|fails"):
        engine.run()
    assert state(backend, uuid) == "REVERTED"
    assert sorted(flows.DONE) == sorted(f"-{name}" for name in planned.revert)


def test_partly_reverted_flow_is_in_failure_until_revert_completes_it(
    backend: base.Backend,
) -> None:
    flows.FAILING.add("d")
    engine = operations.start(backend, "tests.operations.flows:nested", defer_reverts=False)
    uuid = uuid_of(engine)
    for _ in range(2):  # a second run changes nothing
        with pytest.raises(ValueError, match="d fails"):
            engine.run()
        assert flows.DONE == ["a", "b", "c", "d", "-d", "-c"]
        row = operations.find(backend, uuid)
        assert (row.state, row.error) == ("FAILURE", "d: ValueError: d fails; not reverted: a, b")
    assert operations.plan(backend, uuid, "resume") == operations.Plan((), ())
    assert operations.plan(backend, uuid, "revert") == operations.Plan((), ("a", "b"))
    with pytest.raises(exceptions.Cancelled, match="all or nothing"):
        operations.revert(backend, uuid, reason="all or nothing").run()
    assert flows.DONE[-2:] == ["-b", "-a"]
    assert state(backend, uuid) == "REVERTED"


@pytest.mark.parametrize("made_by", [STEPS, "tests.operations.flows:tried"])
def test_revert_repeats_a_failed_revert_and_continues(backend: base.Backend, made_by: str) -> None:
    """A revert can be repeated any number of times; the task receives its result each time."""
    flows.FAILING.update(("c", "-b"))
    engine = operations.start(backend, made_by)
    uuid = uuid_of(engine)
    with pytest.raises(OSError, match="b cannot be undone"):
        engine.run()
    assert flows.DONE == ["a", "b", "c", "-c", "-b"]
    assert operations.find(backend, uuid).error == "c: ValueError: c fails; not reverted: a, b"
    planned = operations.plan(backend, uuid, "revert")
    assert (planned.run, {"a", "b"} - {*planned.revert}) == ((), set())
    with pytest.raises(OSError, match="b cannot be undone"):
        operations.revert(backend, uuid).run()
    assert flows.DONE[5:] == ["-b"]
    assert state(backend, uuid) == "FAILURE"
    flows.FAILING.remove("-b")
    engine = operations.revert(backend, uuid)
    with pytest.raises(ValueError, match="c fails"):
        engine.run()
    assert flows.DONE[6:] == ["-b", "-a"]
    assert state(backend, uuid) == "REVERTED"
    assert not engine.storage.get_revert_failures()


def test_error_of_failed_flow_names_tasks_before_retry_controllers(backend: base.Backend) -> None:
    """Cancelled flows list them as well; the controller of a single task's retries is omitted."""
    flows.FAILING.update(("d", "-b"))
    engine = operations.start(backend, "tests.operations.flows:deep")
    uuid = uuid_of(engine)
    with pytest.raises(OSError, match="b cannot be undone"):
        engine.run()
    left = "not reverted: a, b, outer and 1 more"
    assert operations.find(backend, uuid).error == f"d: ValueError: d fails; {left}"
    flows.FAILING.clear()
    engine = operations.start(backend, "tests.operations.flows:steps")
    flows.FAILING.add("-a")
    engine.atom_notifier.register(states.SUCCESS, lambda *_, **__: engine.cancel(reason="no"))
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    error = operations.find(backend, uuid_of(engine)).error
    assert error == "Cancelled: the flow was cancelled: no; not reverted: a"


def test_suspended_second_revert_is_resumed(backend: base.Backend) -> None:
    flows.FAILING.update(("d", "-c", "-b"))
    uuid = uuid_of(engine := operations.start(backend, STEPS))
    with pytest.raises(OSError, match="c cannot be undone"):
        engine.run()
    flows.FAILING.difference_update(("-c", "-b"))
    engine = operations.revert(backend, uuid)
    engine.atom_notifier.register(states.REVERTED, lambda *_, **__: engine.suspend())
    engine.run()
    assert (flows.DONE[6:], state(backend, uuid)) == (["-c"], "SUSPENDED")
    with pytest.raises(ValueError, match="d fails"):
        operations.resume(backend, uuid).run()
    assert (flows.DONE[7:], state(backend, uuid)) == (["-b", "-a"], "REVERTED")


@pytest.mark.parametrize(
    ("operation", "failing", "words"),
    [
        ("resume", "", "SUCCESS"),
        ("resume", "c", "already ended in REVERTED; to run it again, use retry"),
        ("retry", "", "is in SUCCESS: no task can be retried"),
        ("revert", "c", "is in REVERTED: no task can be reverted"),
    ],
)
def test_operation_that_the_flow_state_forbids_is_refused(
    operation: str, failing: str, words: str, backend: base.Backend
) -> None:
    uuid = started(backend, failing)
    with pytest.raises(exceptions.InvalidState, match=words):
        getattr(operations, operation)(backend, uuid)
    assert not flows.DONE
    if (operation, failing) != ("retry", "c"):
        with pytest.raises(exceptions.InvalidState):
            operations.plan(backend, uuid, operation)


def failed(backend: base.Backend) -> str:
    return started(backend, "c", "tests.operations.flows:raced", never_resolve=True)


@pytest.mark.parametrize("failing", ["", "d"])
@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (suspended, "resume", "resume"),
        (suspended, "resume", "revert"),
        (suspended, "revert", "resume"),
        (suspended, "retry", "resume"),
        (failed, "resume", "retry"),
        (failed, "retry", "revert"),
        (failed, "revert", "revert"),
        (reverted, "retry", "retry"),
    ],
)
def test_operation_is_refused_after_another_one_ended_the_flow(
    make: Any, first: str, second: str, failing: str, backend: base.Backend
) -> None:
    """Both operations read the flow before one of them runs it."""
    uuid = make(backend)
    first_engine = getattr(operations, first)(backend, uuid)
    if second == "revert" and make is failed:  # The first one has changed the records at once.
        with pytest.raises(exceptions.InvalidState, match="is in PENDING: no task can be"):
            getattr(operations, second)(backend, uuid)
        return
    second_engine = getattr(operations, second)(backend, uuid)
    flows.FAILING.update(failing)
    with contextlib.suppress(ValueError, exceptions.Cancelled):
        first_engine.run()
    done, ended = list(flows.DONE), state(backend, uuid)
    assert ended in states.FLOW_ENDED
    for _ in range(2):
        with pytest.raises(exceptions.InvalidState, match=ended):
            second_engine.run()
    assert (flows.DONE, state(backend, uuid)) == (done, ended)


@pytest.mark.parametrize("operation", ["resume", "retry", "revert"])
def test_operation_is_refused_if_the_flow_was_reverted_during_loading(
    operation: str, backend: base.Backend
) -> None:
    uuid = failed(backend)

    def revert() -> None:
        with contextlib.suppress(ValueError):
            operations.revert(backend, uuid).run()

    flows.MEANWHILE.append(revert)
    with pytest.raises(exceptions.InvalidState, match="has ended in REVERTED since"):
        getattr(operations, operation)(backend, uuid).run()
    assert flows.DONE == ["-c", "-b", "-a"]
    assert state(backend, uuid) == "REVERTED"


@pytest.mark.parametrize("operation", ["resume", "retry", "revert"])
def test_operation_on_unknown_flow_raises_not_found(operation: str, backend: base.Backend) -> None:
    for do in (getattr(operations, operation), operations.delete, operations.suspend):
        with pytest.raises(exceptions.NotFound):
            do(backend, models.new_uuid())
    with pytest.raises(exceptions.NotFound):
        operations.plan(backend, models.new_uuid(), operation)


def test_engine_kind_is_stored_without_its_options(backend: base.Backend) -> None:
    uuid = started(backend, "c", engine="parallel://?max_workers=2")
    assert _resuming.kind(backend, uuid) == "parallel"
    assert type(operations.retry(backend, uuid)).__name__ == "ParallelActionEngine"
    assert type(operations.retry(backend, uuid, engine="serial")).__name__ == "SerialActionEngine"


# Suspend and cancel a running flow. ---------------------------------------------------------------


class Held:
    """A flow that runs in a thread and waits after its second step."""

    def __init__(self, backend: base.Backend) -> None:
        self.engine = operations.start(backend, STEPS)
        self.uuid = uuid_of(self.engine)
        self.waits, self._on = threading.Event(), threading.Event()
        self.engine.atom_notifier.register(states.SUCCESS, self._wait)
        self._thread = threading.Thread(target=self._run)

    def _wait(self, *_: Any, **__: Any) -> None:
        if len(flows.DONE) == 2:
            self.waits.set()
            self._on.wait(60)

    def _run(self) -> None:
        with contextlib.suppress(exceptions.Cancelled):
            self.engine.run()

    def __enter__(self) -> Held:
        self._thread.start()
        assert self.waits.wait(30)
        return self

    def is_told(self) -> bool:
        state = self.engine.storage.get_flow_state()
        return self.engine.is_cancelled or state == states.SUSPENDING

    def go_on(self) -> None:
        self._on.set()

    def __exit__(self, *_: Any) -> None:
        self.go_on()
        self._thread.join(30)
        assert not self._thread.is_alive()


def let_go_when_asked(held: Held) -> threading.Thread:
    """Continue the flow in a thread as soon as its engine has received the command."""

    def wait() -> None:
        until(held.is_told)
        held.go_on()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("ask", "ended"), [(operations.suspend, "SUSPENDED"), (operations.cancel, "REVERTED")]
)
def test_suspend_and_cancel_reach_the_running_engine(
    ask: Any, ended: str, backend: base.Backend
) -> None:
    with Held(backend) as held:
        assert operations.is_running(backend, held.uuid)
        thread = let_go_when_asked(held)
        told = ask(backend, held.uuid, reason="the shop is closed", by="me", wait=30)
        thread.join(30)
    assert told == operations.StateChange("RUNNING", ended)
    assert not operations.is_running(backend, held.uuid)
    with backend.get_connection() as connection:
        history = connection.get_flow_details(held.uuid).history
    assert any("the shop is closed" in (change.why or "") for change in history)


def test_suspend_raises_timeout_if_the_flow_does_not_end(backend: base.Backend) -> None:
    with Held(backend) as held:
        with pytest.raises(TimeoutError, match=r"did not end within 0\.2 s"):
            operations.suspend(backend, held.uuid, wait=0.2)
        with pytest.raises(exceptions.InvalidState, match="is in RUNNING: no task can be retried"):
            operations.retry(backend, held.uuid)


def test_flow_that_has_ended_cannot_be_cancelled_or_suspended(backend: base.Backend) -> None:
    uuid = started(backend, "c")
    for make in (operations.cancel, operations.suspend):
        with pytest.raises(exceptions.InvalidState, match=r"has ended in REVERTED: there is noth"):
            make(backend, uuid)


@pytest.mark.parametrize("is_parked", [True, False])
def test_suspended_flow_is_cancelled_by_its_next_engine(
    is_parked: bool, backend: base.Backend
) -> None:
    engine = operations.start(backend, "tests.operations.flows:approval")
    engine.park_after = 0.0
    engine.run()
    uuid = engine.storage.flow_uuid
    if not is_parked:
        change = operations.suspend(backend, uuid)
        assert change == operations.StateChange("SUSPENDED", "SUSPENDED")
    change = operations.cancel(backend, uuid, reason="the shop is closed")
    assert change == operations.StateChange("SUSPENDED", "SUSPENDED")
    resumed = operations.resume(backend, uuid)
    with pytest.raises(exceptions.ExecutionFailure, match="the shop is closed"):
        resumed.run()
    assert resumed.storage.get_flow_state() == "REVERTED"
    with pytest.raises(exceptions.InvalidState, match="`wbengine flow revert` reverts"):
        operations.cancel(backend, uuid)


TRIPS = """
import dataclasses
from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.types import codec

@codec.allow
@dataclasses.dataclass
class Trip:
    city: str

@task.task(provides="city")
def city_of(trip):
    return trip.city

def book():
    return linear_flow.Flow("book").add(city_of())

def plan(trip: Trip):
    return linear_flow.Flow("plan").add(city_of(inject={"trip": trip}))
"""


def test_resume_imports_the_types_of_inputs(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trips.py").write_text(TRIPS)
    monkeypatch.syspath_prepend(tmp_path)
    trips = importlib.import_module("trips")
    started_flow = operations.start(store, "trips:book", store={"trip": trips.Trip("Rome")})
    started_flow.compile()
    started_flow.prepare()
    uuid = uuid_of(started_flow)

    def forget() -> None:  # as in another process
        monkeypatch.delitem(sys.modules, "trips")
        monkeypatch.delitem(classes.ALLOWED, "trips.Trip")

    forget()
    unknown = pytest.raises(exceptions.CorruptRecord, match=r"'trips\.Trip' is not known")
    with contextlib.closing(store.get_connection()) as connection, unknown:
        connection.get_flow_details(uuid)
    assert operations.plan(store, uuid, _resuming.RESUME).run == ("trips.city_of",)
    forget()
    engine = operations.resume(store, uuid)
    engine.run()
    assert engine.storage.fetch("city") == "Rome"


def test_flow_whose_factory_has_an_argument_of_unknown_class_is_operated(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and the dashboard do not import the modules of flows."""
    (tmp_path / "trips.py").write_text(TRIPS)
    monkeypatch.syspath_prepend(tmp_path)
    trips = importlib.import_module("trips")
    trip = {"trip": trips.Trip("Rome")}
    parent, uuid = (
        engines.submit("trips:plan", factory_kwargs=trip, backend=store).id for _ in range(2)
    )
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        detail.meta["parent"] = {"flow": parent}
        connection.save_changes(detail, ())
        monkeypatch.delitem(sys.modules, "trips")
        monkeypatch.delitem(classes.ALLOWED, "trips.Trip")

        with _changing.changing(store, uuid) as changed:
            changed.add_note(1.0, "late", "Ann")
        operations.suspend(store, uuid)
        operations.signal(store, uuid, "paid")
        operations.cancel(store, uuid)
        assert [each.what for each in connection.commands([uuid]).values()] == ["cancel"]
        rows = connection.list_flows().flows
        assert connection.dependents(rows)[uuid] == {parent}
        detail = engines.read_flow_detail(connection, uuid)
    assert detail.meta["factory"]["kwargs"]["trip"].city == "Rome"
    assert [note.why for note in detail.notes] == ["Ann: late"]


def test_flow_with_a_value_that_its_changed_class_refuses_is_operated(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a deployment, a process may have imported later code than that of the flow."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(text: str) -> Any:
        (tmp_path / "changed_trips.py").write_text(text)
        sys.modules.pop("changed_trips", None)
        return importlib.import_module("changed_trips")

    trip = imported(TRIPS).Trip("Rome")
    uuid = engines.submit("changed_trips:plan", factory_kwargs={"trip": trip}, backend=store).id
    with contextlib.closing(store.get_connection()) as connection:
        imported(TRIPS.replace("city: str", "destination: str"))
        with pytest.raises(exceptions.CorruptRecord):
            connection.get_flow_details(uuid)
        with _changing.changing(store, uuid) as changed:
            changed.add_note(1.0, "late", "Ann")
        operations.cancel(store, uuid)
        imported(TRIPS)
        detail = connection.get_flow_details(uuid)
    assert detail.meta["factory"]["kwargs"]["trip"].city == "Rome"
    assert [note.why for note in detail.notes] == ["Ann: late"]


# Delete and prune. --------------------------------------------------------------------------------


def test_delete_removes_flow_and_its_automatic_logbook(backend: base.Backend) -> None:
    one, other = started(backend), started(backend, book="kept")
    loaded = uuid_of(engines.load(flows.steps(), backend=backend))
    for uuid in (one, other, loaded):
        operations.delete(backend, uuid)
    with backend.get_connection() as connection:
        assert [book.name for book in connection.get_logbooks()] == ["kept"]
        assert not connection.list_flows().flows


def test_delete_of_running_flow_is_refused(backend: base.Backend) -> None:
    with Held(backend) as held:
        with pytest.raises(exceptions.FlowBusy, match="suspend it first"):
            operations.delete(backend, held.uuid)
        with pytest.raises(exceptions.NotFound):
            operations.delete(backend, held.uuid[:8])
    assert state(backend, held.uuid) == "SUCCESS"


def test_delete_is_refused_in_other_states_than_the_given_ones(backend: base.Backend) -> None:
    uuid = suspended(backend)
    with pytest.raises(exceptions.InvalidState, match="must be in REVERTED or SUCCESS"):
        operations.delete(backend, uuid, states=("SUCCESS", "REVERTED"))
    operations.delete(backend, uuid, states=("SUCCESS", "SUSPENDED"))


@pytest.mark.parametrize("end", ["runs", "is suspended", "succeeds"])
def test_prune_keeps_a_flow_that_ran_after_it_was_listed(end: str, backend: base.Backend) -> None:
    """The engine would lose its lease, and the completed tasks would never be reverted."""
    first, retried = started(backend, "c"), started(backend, "c")
    before = time.time() + (0 if end == "succeeds" else 60)
    pruned = operations.prune(backend, before=before)
    assert next(pruned).uuid == first
    engine = operations.retry(backend, retried)
    if end == "is suspended":
        engine.atom_notifier.register(states.SUCCESS, lambda *_, **__: engine.suspend())
    rest: list[base.FlowRow] = []
    if end == "runs":
        engine.notifier.register(states.RUNNING, lambda *_, **__: rest.extend(pruned))
    engine.run()
    assert [*rest, *pruned] == []
    assert state(backend, retried) == ("SUSPENDED" if end == "is suspended" else "SUCCESS")


def test_suspended_flows_are_pruned_without_parked_and_blocked_ones(store: base.Backend) -> None:
    parked = engines.submit("tests.operations.flows:approval", backend=store)
    run_submitted(store)
    idle = engines.submit(STEPS, backend=store)
    operations.suspend(store, idle.id)
    run_submitted(store)
    blocked = engines.submit(STEPS, backend=store)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(blocked.id)
        detail.enter(states.SUSPENDED, time.time(), _history.BLOCKED)
        connection.save_changes(detail, ())
    assert operations.find(store, parked.id).parked
    assert operations.find(store, blocked.id).blocked
    pruned = operations.prune(store, before=time.time() + 60.0, states=[states.SUSPENDED])
    assert [row.uuid for row in pruned] == [idle.id]
    assert parked.state == states.WAITING


def test_prune_keeps_flows_that_a_conductor_has_to_run_again(backend: base.Backend) -> None:
    first, requested, later = (started(backend, "c") for _ in range(3))
    with contextlib.closing(backend.get_connection()) as connection:
        connection.put_command(requested, _commands.FlowCommand(_commands.RETRY))
        before = time.time() + 60
        dry = [row.uuid for row in operations.prune(backend, before=before, dry_run=True)]
        assert dry == [first, later]
        pruned = operations.prune(backend, before=before)
        assert next(pruned).uuid == first
        connection.put_command(later, _commands.FlowCommand(_commands.RETRY))
        assert [*pruned] == []
    assert {state(backend, uuid) for uuid in (requested, later)} == {"REVERTED"}


def test_prune_deletes_finished_flows_older_than_the_limit(backend: base.Backend) -> None:
    good, bad, waits = started(backend), started(backend, "c"), suspended(backend)
    later = time.time() + 1
    assert list(operations.prune(backend, before=1.0)) == []
    dry = operations.prune(backend, before=later, dry_run=True)
    assert [row.uuid for row in dry] == [good, bad]
    pruned = operations.prune(backend, before=later, states=["REVERTED"], batch=1)
    assert [row.uuid for row in pruned] == [bad]
    pruned = operations.prune(backend, before=later, batch=1)
    assert [row.uuid for row in pruned] == [good]
    assert state(backend, waits) == "SUSPENDED"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: operations.signal(store, "u", "approved"),
        lambda store: operations.cancel(store, "u"),
        lambda store: operations.suspend(store, "u"),
        lambda store: operations.request(store, "u", "resume"),
        lambda store: operations.published(store, "u"),
    ],
    ids=["signal", "cancel", "suspend", "request", "published"],
)
def test_url_instead_of_a_backend_is_refused(call: Any) -> None:
    with pytest.raises(TypeError, match=r"backend must be a Backend, .*fetch\(URL\).* got str"):
        call("sqlite:///flows.db")
