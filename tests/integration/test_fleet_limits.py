"""Limits of tasks and flows that several engines share."""

from __future__ import annotations

import functools
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.integration.owned_flows import as_left_by_dead_engine
from tests.support import engine_threads, limited_tasks, signalled
from tests.support.fresh import process
from tests.support.held_tasks import HeldTasks
from tests.support.limited_tasks import ENDLESS, RELEASED, RUNS, flow, one_each, three, twenty
from tests.support.waiting import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._limits import SQLStore, account_stores
from wbengine._limits.limit_changes import LimitChange
from wbengine._tasks import functors
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base, models
from wbengine.views import flow_status as views

PARALLEL: dict[str, Any] = {"engine": "parallel", "max_workers": 20}


@pytest.fixture(autouse=True)
def fresh_recorder() -> Iterator[None]:
    limited_tasks.clear()
    yield
    RELEASED.set()


@pytest.fixture(params=["serial", "threads", "memory"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with engine_options(request.param, tmp_path, limited_tasks, slots=20) as found:
        yield found


@pytest.fixture(params=["none", "memory", "sqlite", "redis"])
def limit_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options for the store of the limits."""
    if request.param == "none":
        yield {}
    elif request.param == "redis":
        yield {"limits": request.getfixturevalue("redis_url")}
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"
        with backends.backend(url) as backend:
            yield {"backend": backend}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


def running(*args: Any, **options: Any) -> engine_threads.Running:
    """Return an engine that is running in a thread."""
    run = engine_threads.Running(engines.load(*args, **options))
    run.start()
    return run


def test_concurrency_limit_caps_running_tasks(options: dict[str, Any]) -> None:
    engines.run(flow(three, 20), **options)
    assert len(RUNS.began) == 20
    assert RUNS.most == (3 if options else 1)


def test_two_engines_share_one_concurrency_limit(limit_store: dict[str, Any]) -> None:
    runs = [running(flow(three, 20, who), **PARALLEL, **limit_store) for who in "ab"]
    assert [run.end() for run in runs] == [states.SUCCESS] * 2
    assert len(RUNS.began) == 40 and RUNS.most == 3
    assert limit_accounts(limit_store) == {}, "permits are given back when a run ends"


def limit_accounts(limit_store: dict[str, Any]) -> dict[str, Any]:
    accounts = store_of(limit_store).all()
    return {name: account for name, account in accounts.items() if "limited_tasks.three" in name}


def test_two_engines_share_one_rate_limit(limit_store: dict[str, Any]) -> None:
    runs = [running(flow(twenty, 30, who, 0.0), **PARALLEL, **limit_store) for who in "ab"]
    assert [run.end() for run in runs] == [states.SUCCESS] * 2
    times = sorted(at for _, at in RUNS.began)
    assert len(times) == 60
    assert times[-1] - times[0] >= 59 / 20 - 1
    for begin in times:
        # A task may start up to one second late.
        assert sum(begin <= at < begin + 1 for at in times) <= 20 + 8


def test_changed_limit_applies_to_waiting_tasks_of_all_engines(limit_store: dict[str, Any]) -> None:
    """A lowered and a raised limit, while tasks run and wait."""
    limits = store_of(limit_store)
    name = functors.code_of(three())
    runs = [running(flow(three, 6, who, ENDLESS), **PARALLEL, **limit_store) for who in "ab"]
    try:
        until(lambda: RUNS.running == 3)
        limits.change(LimitChange(name, None, 5))
        until(lambda: RUNS.running == 5, within=4)
        limits.change(LimitChange(name, None, 2))
        until(lambda: {limits.all()[name][0].quota.concurrency} == {2}, within=7)
        RELEASED.set()
        assert [run.end() for run in runs] == [states.SUCCESS] * 2
        assert len(RUNS.began) == 12 and RUNS.most == 5
    finally:
        limits.remove_change(name)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_raised_rate_of_hours_starts_waiting_tasks_within_seconds(
    kind: str, request: pytest.FixtureRequest, store: base.Backend
) -> None:
    limit_store = {"backend": store}
    if kind == "redis":
        limit_store["limits"] = request.getfixturevalue("redis_url")
    hourly = task.task(rate_limit="1/h", limit="hourly")(three.fn)
    run = running(flow(hourly, 10), **PARALLEL, **limit_store)
    until(lambda: len(RUNS.began) == 1)
    changed = time.monotonic()
    store_of(limit_store).change(LimitChange("hourly", "100/s"))
    assert run.end() == states.SUCCESS
    assert len(RUNS.began) == 10 and time.monotonic() < changed + 60


def store_of(limit_store: dict[str, Any]) -> account_stores.Store:
    return account_stores.store_of(limit_store.get("limits") or limit_store.get("backend"))


def test_small_flow_gets_its_share_of_permits_beside_a_large_flow(store: base.Backend) -> None:
    """The large flow owns all permits when the small one starts."""
    big = running(flow(three, 200, "big", 0.03), backend=store, **PARALLEL)
    until(lambda: len(RUNS.began) >= 10)
    small = running(flow(three, 30, "small", 0.03), backend=store, **PARALLEL)
    assert small.end() == states.SUCCESS
    owners = [who for who, _ in RUNS.began]
    during = Counter(owners[owners.index("small") :])
    assert during["small"] == 30
    assert during["big"] <= 2 * 30 + 10, "of three permits it has one or two"
    big.engine.suspend()
    assert big.end() == states.SUSPENDED


def test_items_of_a_map_are_limited(limit_store: dict[str, Any]) -> None:
    items = [f"{number}" for number in range(20)]
    mapped_flow = linear_flow.Flow("f").add(
        task.Map(three(inject={"seconds": 0.02}), over="items", item="who", provides="told")
    )
    engine = engines.load(mapped_flow, inputs={"items": items}, **PARALLEL, **limit_store)
    engine.run()
    assert engine.storage.fetch("told") == items
    assert RUNS.most == 3


def test_map_items_are_limited_per_concurrency_key() -> None:
    inner = one_each(inject={"seconds": 0.02})
    mapped_flow = linear_flow.Flow("f").add(task.Map(inner, over="items", item="customer"))
    engines.run(mapped_flow, {"items": ["a", "b"] * 5}, **PARALLEL)
    assert len(RUNS.began) == 10 and RUNS.most == 2


def test_task_waiting_for_permit_is_pending_and_shows_its_limit(store: base.Backend) -> None:
    """The task has no attempt yet, and the view names the limit."""
    holder = running(flow(three, 3, "holder", ENDLESS), backend=store, **PARALLEL)
    until(lambda: RUNS.running == 3)
    run = running(flow(three, 5, "f"), backend=store, **PARALLEL)
    uuid = run.engine.storage.flow_uuid
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    with store.get_connection() as connection:
        view = views.read(connection, uuid)
    reason = "Starts when the limit permits it: 3 at once."
    assert {(atom.state, atom.attempt, atom.waiting) for atom in view.atoms} == {
        (states.PENDING, 0, reason)
    }
    assert view.waiting == f"0: {reason} (4 more are waiting)"
    RELEASED.set()
    assert holder.end() == run.end() == states.SUCCESS
    assert RUNS.most == 3


def test_map_waiting_for_permit_shows_its_limit(store: base.Backend) -> None:
    holder = running(flow(three, 3, "holder", ENDLESS), backend=store, **PARALLEL)
    until(lambda: RUNS.running == 3)
    mapped_flow = linear_flow.Flow("f").add(
        task.Map(three(inject={"seconds": 0.0}), over="items", item="who")
    )
    run = running(mapped_flow, backend=store, inputs={"items": ["a", "b"]}, **PARALLEL)

    def waiting() -> str | None:
        with store.get_connection() as connection:
            view = views.read(connection, run.engine.storage.flow_uuid)
        return view.atoms[0].waiting if view.atoms else None

    until(lambda: waiting() == "Its items start when the limit permits it: 3 at once.")
    RELEASED.set()
    assert holder.end() == run.end() == states.SUCCESS


@pytest.mark.parametrize("how", ["suspend", "cancel", "deadline", "sibling fails"])
def test_flow_waiting_for_permits_ends_at_once(how: str, store: base.Backend) -> None:
    """None of the waiting tasks runs."""
    holder = running(flow(three, 3, "holder", ENDLESS), backend=store, **PARALLEL)
    until(lambda: RUNS.running == 3)
    waiting_flow = flow(three, 5, "f")
    if how == "sibling fails":
        waiting_flow.add(Spoils())
    else:
        mapped = three("mapped", inject={"seconds": 0.0})
        waiting_flow.add(task.Map(mapped, over="items", item="who"))
    engine = engines.load(waiting_flow, backend=store, inputs={"items": ["x"] * 3}, **PARALLEL)
    timer = threading.Timer(0.3, engine.suspend if how == "suspend" else engine.cancel)
    if how in ("suspend", "cancel"):
        timer.start()
    if how == "suspend":
        engine.run()
        assert engine.storage.get_flow_state() == states.SUSPENDED
    else:
        kind = {
            "cancel": exceptions.Cancelled,
            "deadline": exceptions.DeadlineExceeded,
            "sibling fails": LookupError,
        }[how]
        with pytest.raises(kind):
            engine.run(deadline=0.3 if how == "deadline" else None)
        assert engine.storage.get_flow_state() == states.REVERTED
    assert {who for who, _ in RUNS.began} == {"holder"}
    ((account, now),) = limit_accounts({"backend": store}).values()
    assert list(account.live(now)) == [holder.engine.storage.flow_uuid]


class Spoils(task.Task):
    def execute(self) -> None:
        raise LookupError("spoilt")


class SpoilsLate(task.Task):
    def execute(self) -> None:
        until(lambda: len(RUNS.began) == 3)
        raise LookupError("spoilt")


@pytest.mark.parametrize("cancel_on_revert", [False, True])
@pytest.mark.parametrize("own", [0, 2])
def test_items_waiting_for_permits_do_not_delay_reverting(own: int, cancel_on_revert: bool) -> None:
    """This applies to a Map with and without started items."""
    holder = running(flow(three, 3 - own, "holder", ENDLESS), **PARALLEL)
    until(lambda: RUNS.running == 3 - own)
    item_task = three("each", inject={"seconds": 0.5})
    item_task.cancel_on_revert = cancel_on_revert
    failing_flow = unordered_flow.Flow("f").add(SpoilsLate())
    failing_flow.add(task.Map(item_task, over="items", item="who"))
    engine = engines.load(failing_flow, inputs={"items": ["x"] * 9}, **PARALLEL)
    with pytest.raises(LookupError, match="spoilt"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert len(RUNS.began) == 3, "no further item began"
    assert RUNS.running == 3 - own
    RELEASED.set()
    assert holder.end() == states.SUCCESS


@task.task(rate_limit="1/h")
def spoils(who: str) -> None:
    raise LookupError(who)


def test_items_waiting_for_rate_limit_do_not_delay_failure_of_another() -> None:
    mapped_flow = linear_flow.Flow("f").add(task.Map(spoils(), over="items", item="who"))
    with pytest.raises(LookupError, match="a"):
        engines.run(mapped_flow, {"items": ["a"] * 3}, deadline=60, **PARALLEL)


def test_suspended_flow_resumes_within_its_limit(store: base.Backend) -> None:
    engine = engines.load(flow(three, 30, "f"), backend=store, **PARALLEL)
    threading.Timer(0.1, engine.suspend).start()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    before = len(RUNS.began)
    assert before < 30
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert len(RUNS.began) == 30 and RUNS.most == 3


def test_cancelled_task_does_not_wait_for_a_permit(store: base.Backend) -> None:
    holder = running(flow(three, 3, "holder", ENDLESS), backend=store, **PARALLEL)
    until(lambda: RUNS.running == 3)
    run = running(flow(three, 5, "f"), backend=store, **PARALLEL)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    assert run.engine.cancel("3")
    with pytest.raises(exceptions.Cancelled):
        run.end()
    RELEASED.set()
    assert holder.end() == states.SUCCESS


class Flaky(task.Task):
    concurrency = 1
    retries = 2

    def execute(self) -> None:
        RUNS.end(RUNS.begin(self.name))
        if len(RUNS.began) < 3:
            raise LookupError("again")


class Other(task.Task):
    limit = f"{__name__}.Flaky"
    concurrency = 1

    def execute(self) -> None:
        RUNS.end(RUNS.begin(self.name))


def test_permit_is_not_held_between_attempts() -> None:
    flaky = Flaky("flaky")
    flaky.backoff = 3600
    run = running(unordered_flow.Flow("f").add(flaky))
    until(lambda: len(RUNS.began) == 1)
    engines.run(Other("other"))
    assert [name for name, _ in RUNS.began] == ["flaky", "other"]
    run.engine.suspend()
    assert run.end() == states.SUSPENDED


def test_permits_of_killed_engine_are_released_when_its_lease_expires(tmp_path: Path) -> None:
    """The permits are released when the lease of the killed engine expires."""
    url = f"sqlite:///{tmp_path}/flows.db"
    program = f"from tests.support import limited_tasks; limited_tasks.hold({url!r})"
    with process("-c", program, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline()
        with backends.backend(url) as store:
            run = running(flow(three, 5, "f"), backend=store, **PARALLEL)
            until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
            other.kill()
            killed = time.monotonic()
            assert not RUNS.began
            assert run.end() == states.SUCCESS
            first = min(at for _, at in RUNS.began) - killed
            assert 0.5 < first < 2 + 1 + 10
            assert len(RUNS.began) == 5 and RUNS.most <= 3


def test_wide_flow_acquires_permits_in_batches(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 permits need fewer than 200 transactions."""
    steps = []
    real = SQLStore.settle

    def settle(self: SQLStore, wants: Any) -> Any:
        steps.append(len(wants))
        return real(self, wants)

    monkeypatch.setattr(SQLStore, "settle", settle)
    wide = task.task(concurrency=1000)(three.fn)
    engines.run(flow(wide, 1000, "f", 0.0), backend=store, **PARALLEL)
    assert len(RUNS.began) == 1000
    assert len(steps) < 200


# -- tasks that wait, are withdrawn and wait again


def one(name: str, who: str = "f", seconds: float = 0.0, priority: int = 0) -> task.Task:
    """Return a task of a limit that permits one task at a time."""
    limited: task.Task = task.task(concurrency=1, limit="one")(three.fn)(
        name, inject={"who": who, "seconds": seconds}
    )
    limited.priority = priority
    return limited


def run_holder(**options: Any) -> engine_threads.Running:
    """Run a flow that has the permit of `one` until `RELEASED` is set."""
    holder = running(
        unordered_flow.Flow("holder").add(one("held", "holder", ENDLESS)), **PARALLEL, **options
    )
    until(lambda: RUNS.running == 1)
    return holder


def test_limited_map_larger_than_window_runs_all_items() -> None:
    count = 6000
    item = task.task(concurrency=1000)(lambda item: item)
    mapped_flow = linear_flow.Flow("f").add(task.Map(item(), over="items", provides="results"))
    results = engines.run(
        mapped_flow, {"items": range(count)}, engine="parallel", executor=HeldTasks(), deadline=90
    )
    assert results["results"] == list(range(count))


def test_limited_map_creates_only_some_of_its_items() -> None:
    count = 6000
    item = task.task(concurrency=10)(lambda item: item)
    mapped_flow = linear_flow.Flow("f").add(task.Map(item(), over="items", name="m"))
    executor = HeldTasks(held=True)
    run = running(mapped_flow, inputs={"items": range(count)}, engine="parallel", executor=executor)
    for number in range(30):
        until(lambda: executor.waiting)
        executor.release()
        until(functools.partial(has_done, run, number + 1))
    created = sum(each.submitted is not None for each in run.engine.storage.record("m").items)
    run.engine.suspend()
    assert run.end() == states.SUSPENDED
    assert 1000 < created < count


def has_done(run: engine_threads.Running, number: int) -> bool:
    """Return whether this number of items of the Map `m` is done."""
    items: list[models.ItemDetail] = list(run.engine.storage.record("m").items)
    return [each.state for each in items].count(states.SUCCESS) >= number


@pytest.mark.parametrize("has_second", [True, False])
def test_withdrawn_task_leaves_its_place_to_other_tasks(has_second: bool) -> None:
    """A second task of the same flow, and a third one of another flow, run before it."""
    holder = run_holder()
    tried = unordered_flow.Flow("tried", retry.Times(2, "again", backoff=3600))
    tried.add(one("first", "first", priority=5), Spoils("spoils"))
    flow = unordered_flow.Flow("f").add(tried)
    if has_second:
        flow.add(one("second", "second"))
    run = running(flow, **PARALLEL)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    until(lambda: run.engine.storage.get_atom_state("again") == states.RETRYING)
    RELEASED.set()
    assert holder.end() == states.SUCCESS
    if has_second:
        until(lambda: run.engine.storage.get_atom_state("second") == states.SUCCESS)
    engines.run(one("third", "third"), deadline=30)
    expected = ["holder", "second", "third"] if has_second else ["holder", "third"]
    assert [who for who, _ in RUNS.began] == expected
    run.engine.suspend()
    assert run.end() == states.SUSPENDED


def test_retried_task_needs_a_permit_for_each_attempt(store: base.Backend) -> None:
    """Another task gets the permit between the attempts."""

    def waits(name: str) -> bool:
        with store.get_connection() as connection:
            atom = views.read(connection, run.engine.storage.flow_uuid).atom(name)
        return atom is not None and "limit permits it" in (atom.waiting or "")

    class FailsOnce(task.Task):
        concurrency, limit, retries = 1, "one", 1

        def execute(self) -> None:
            RUNS.end(RUNS.begin("fails"))
            if len(RUNS.began) == 1:
                until(lambda: waits("other"))
                raise LookupError("once")

    class Starts(task.Task):
        def execute(self) -> None:
            until(lambda: RUNS.began)

    line = linear_flow.Flow("line").add(Starts(), one("other", "other", ENDLESS))
    flow = unordered_flow.Flow("f").add(FailsOnce("fails"), line)
    run = running(flow, backend=store, **PARALLEL)
    until(lambda: len(RUNS.began) >= 3 or (RUNS.running and waits("fails")))
    assert [who for who, _ in RUNS.began] == ["fails", "other"]
    RELEASED.set()
    assert run.end() == states.SUCCESS
    assert [who for who, _ in RUNS.began] == ["fails", "other", "fails"]


def test_task_with_changed_key_does_not_use_permit_of_earlier_key() -> None:
    began: list[str] = []
    free = {"a": threading.Event(), "b": threading.Event()}
    keyed: dict[str, Any] = {
        "concurrency": 1, "limit": "keyed", "concurrency_key": lambda customer: customer
    }  # fmt: skip
    held: list[str] = []

    @task.task(**keyed)
    def hold(customer: str) -> None:
        held.append(customer)
        free[customer].wait(60)

    @task.task(**keyed)
    def note(self: task.Task, customer: str) -> None:
        began.append(self.name)

    holders = [running(hold(f"held {c}", inject={"customer": c}), **PARALLEL) for c in "ab"]
    until(lambda: len(held) == 2)
    moves, stays = note("moves"), note("stays", inject={"customer": "a"})
    moves.priority = 5

    @task.task
    def spoils_once(customer: str) -> None:
        if customer == "a":
            raise LookupError("once")

    tried = unordered_flow.Flow("tried", retry.ForEach(["a", "b"], "r", provides="customer"))
    tried.add(moves, spoils_once("once"))
    run = running(unordered_flow.Flow("f").add(tried, stays), **PARALLEL)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    until(lambda: run.engine.storage.get_atom_state("once") == states.SUCCESS)
    free["a"].set()
    until(lambda: began)
    assert began == ["stays"]
    free["b"].set()
    assert [each.end() for each in (run, *holders)] == [states.SUCCESS] * 3
    assert began == ["stays", "moves"]


def test_reversion_of_limited_items_needs_no_permit() -> None:
    reverted: list[int] = []

    class Item(task.Task):
        concurrency, limit = 1, "one"

        def execute(self, item: int) -> None:
            """Do nothing."""

        def revert(self, item: int, **_: Any) -> None:
            reverted.append(item)

    holders = []

    class SpoilsWhileHeld(task.Task):
        def execute(self) -> None:
            holders.append(run_holder())
            raise LookupError("spoilt")

    mapped_flow = linear_flow.Flow("f").add(
        task.Map(Item(), over="items", item="item"), SpoilsWhileHeld()
    )
    with pytest.raises(LookupError):
        engines.run(mapped_flow, {"items": [1, 2]}, deadline=60, **PARALLEL)
    assert sorted(reverted) == [1, 2]
    RELEASED.set()
    assert holders[0].end() == states.SUCCESS


def test_waits_for_signals_are_limited() -> None:
    waits = [task.WaitFor(name, name=name) for name in "ab"]
    for wait in waits:
        wait.concurrency, wait.limit = 1, "waits"
    run = running(unordered_flow.Flow("f").add(*waits), **PARALLEL)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    until(lambda: run.engine.storage.get_atom_state("a") == states.RUNNING)
    run.engine.signal("b")
    assert run.engine.storage.get_atom_state("b") == states.PENDING
    run.engine.signal("a")
    assert run.end() == states.SUCCESS


@pytest.mark.parametrize("has_holder", [True, False])
def test_running_tasks_of_dead_engine_take_permits_without_waiting(
    has_holder: bool, store: base.Backend
) -> None:
    """The permit of another flow does not delay them, and they use permits of the limit."""
    item = task.task(concurrency=1, limit="one")(lambda item: item)
    flow = unordered_flow.Flow("f").add(
        one("single", "single"), task.Map(item("item"), over="items", item="item", name="m")
    )
    executor = HeldTasks(held=True)
    executor.survives_engine = executor.has_ledger = True
    options: dict[str, Any] = {"engine": "parallel", "executor": executor, "backend": store}
    engine = engines.load(flow, inputs={"items": [1, 2]}, **options)
    engine.atom_notifier.register(states.RUNNING, lambda state, details: engine.suspend())
    engine.run()
    uuid = engine.storage.flow_uuid
    left = as_left_by_dead_engine(store, uuid)
    holders = [run_holder(backend=store)] if has_holder else []
    later = engine_threads.Running(engines.load(flow, flow_detail=left, **options))
    later.start()
    until(lambda: sorted(executor.names) == ["m[0]", "m[1]", "single"])
    until(lambda: held_permits(store, "one").get(uuid) == 3)
    executor.held = False
    while executor.waiting:
        executor.release()
    assert later.end() == states.SUCCESS
    RELEASED.set()
    assert all(holder.end() == states.SUCCESS for holder in holders)


def held_permits(store: base.Backend, limit: str) -> dict[str, int]:
    """Return the number of permits of each flow."""
    accounts = account_stores.store_of(store).all()
    if limit not in accounts:  # Its first flow has not begun.
        return {}
    account, now = accounts[limit]
    return {uuid: row.held for uuid, row in account.live(now).items()}


def limited_flow(name: str, **limits: Any) -> unordered_flow.Flow:
    result = flow(limited_tasks.free, 3, name, 0.05)
    for word, value in limits.items():
        setattr(result, word, value)
    return result


def test_concurrency_limit_caps_running_flows(
    options: dict[str, Any], limit_store: dict[str, Any]
) -> None:
    """Flows with the same limit share it. Each flow keeps its permit until it ends."""
    runs = [
        running(limited_flow(f"f{number}", concurrency=2, limit="api"), **options, **limit_store)
        for number in range(5)
    ]
    assert [run.end() for run in runs] == [states.SUCCESS] * 5
    times: dict[str, list[float]] = {}
    for who, at in RUNS.began:
        times.setdefault(who, []).append(at)
    assert [len(starts) for starts in times.values()] == [3] * 5
    max_running = max(
        sum(min(starts) <= moment <= max(starts) for starts in times.values())
        for moment in (at for _, at in RUNS.began)
    )
    assert max_running <= 2


def test_rate_limit_of_flows_applies_per_concurrency_key(store: base.Backend) -> None:
    def keyed_flow() -> unordered_flow.Flow:
        return limited_flow("f", rate_limit="5/s", concurrency_key=lambda customer: customer)

    began = time.monotonic()
    customers = ("a", "b", "a", "b", "a", "b")
    runs = [
        running(keyed_flow(), backend=store, inputs={"customer": c}, **PARALLEL) for c in customers
    ]
    assert [run.end() for run in runs] == [states.SUCCESS] * 6
    assert time.monotonic() - began > 0.35
    first = sorted(at for _, at in RUNS.began)[: 2 * 3]
    assert first[-1] - first[0] < 0.2 + 6, "both customers begin at once"


@pytest.mark.parametrize("how", ["suspend", "cancel"])
def test_flow_waiting_for_its_flow_limit_can_be_suspended_or_cancelled(
    how: str, store: base.Backend
) -> None:
    first = unordered_flow.Flow("f").add(three("t", inject={"who": "x", "seconds": ENDLESS}))
    first.concurrency = 1
    holder = running(first, backend=store, **PARALLEL)
    until(lambda: RUNS.running == 1)
    run = running(limited_flow("f", concurrency=1), backend=store, **PARALLEL)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    with store.get_connection() as connection:
        view = views.read(connection, run.engine.storage.flow_uuid)
    reason = "The flow starts when its limit permits it: 1 at once."
    assert {(atom.state, atom.waiting) for atom in view.atoms} == {(states.PENDING, reason)}
    assert view.waiting == f"f: {reason}"
    if how == "suspend":
        run.engine.suspend()
        assert run.end() == states.SUSPENDED
        RELEASED.set()
        assert holder.end() == states.SUCCESS
        run.engine.run()
        assert run.engine.storage.get_flow_state() == states.SUCCESS
    else:
        run.engine.cancel()
        with pytest.raises(exceptions.Cancelled):
            run.end()
        assert run.engine.storage.get_flow_state() == states.REVERTED
        assert len(RUNS.began) == 1


def test_flow_waiting_for_its_flow_limit_is_parked_at_once(store: base.Backend) -> None:
    first = unordered_flow.Flow("f").add(three("t", inject={"who": "x", "seconds": ENDLESS}))
    first.concurrency = 1
    holder = running(first, backend=store, **PARALLEL)
    until(lambda: RUNS.running == 1)
    engine = engines.load(limited_flow("f", concurrency=1), backend=store, **PARALLEL)
    engine.park_after = 1000.0
    engine.run()
    assert engine.parked is not None and engine.parked.limit == "flow f"
    RELEASED.set()
    assert holder.end() == states.SUCCESS
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_flow_with_a_flow_permit_keeps_it_while_it_is_parked(store: base.Backend) -> None:
    limited = signalled.flow()
    limited.concurrency = 1
    engine = engines.load(limited, backend=store, **PARALLEL)
    engine.park_after = 0.01
    engine.run()
    assert engine.parked is not None and engine.parked.limit is None
    other = engines.load(limited, backend=store, **PARALLEL)
    other.park_after = 0.01
    other.run()
    assert other.parked is not None and other.parked.limit == "flow signalled"
    engine.signal("approved", 1)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_flow_limit_and_task_limit_apply_together(options: dict[str, Any]) -> None:
    limited = flow(three, 9)
    limited.concurrency = 1
    engines.run(limited, **options)
    assert len(RUNS.began) == 9 and RUNS.most == (3 if options else 1)


def test_limit_of_nested_flow_is_rejected() -> None:
    with pytest.raises(exceptions.CompilationFailure, match="limit, got nested flow 'in'"):
        engines.load(linear_flow.Flow("out").add(limited_flow("in", concurrency=1)))


def test_flow_concurrency_key_that_raises_fails_the_run(store: base.Backend) -> None:
    keyed_flow = limited_flow("f", concurrency=1, concurrency_key=lambda customer: customer)
    with pytest.raises(TypeError, match="customer"):
        engines.run(keyed_flow, backend=store)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"concurrency": 2}, {"concurrency": 3}, "got 2 at once for task 'a' and 3 at once for"),
        ({"rate_limit": "1/s"}, {"concurrency": 3}, "'l' must have the same value, got"),
    ],
    ids=["two concurrencies", "rate and concurrency"],
)
def test_conflicting_values_for_one_limit_are_rejected(
    first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    conflicting_flow = unordered_flow.Flow("f")
    for name, options in (("a", first), ("b", second)):
        conflicting_flow.add(task.task(**options, limit="l")(three.fn)(name))
    with pytest.raises(exceptions.CompilationFailure, match=words):
        engines.load(conflicting_flow)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://x/y", "limits must be the URL of a Redis"),
        ("redsi://:hidden@h", r"got 'redsi://.*' \(did you mean 'redis'"),
    ],
    ids=["other scheme", "misspelt scheme"],
)
def test_limits_url_other_than_redis_is_rejected(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        engines.load(Other("t"), limits=url)
    assert "hidden" not in str(caught.value)


def test_unknown_option_of_limits_url_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'socket_timout' of limits .*'socket_timeout'"):
        account_stores.store_of("redis://127.0.0.1:1/0?socket_timout=3")
    known = "redis://127.0.0.1:1/0?socket_timeout=3&max_connections=2&client_name=me"
    account_stores.store_of(known).close()
