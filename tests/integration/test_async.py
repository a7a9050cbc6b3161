"""Coroutine tasks in given executors and children of workers, and engines that are awaited."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support import async_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions, states, task
from wbengine.engines import _local
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.persistence.backends import _memory

Load = Callable[..., Any]


@pytest.fixture(autouse=True)
def ends_loops() -> Iterator[None]:
    """Check that no thread of an event loop is left. A browser of other tests may have one."""
    before = loop_threads()
    yield
    assert loop_threads() <= before


@pytest.fixture(params=["given threads", "given processes", "worker children"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    """Return `engines.load` for a kind of engine that `tests/contract/flows` does not run."""
    if request.param.startswith("given"):
        pool: futures.Executor
        pool = futures.ThreadPoolExecutor(2) if "threads" in request.param else process_pool()
        with pool:
            yield functools.partial(engines.load, engine="parallel", executor=pool)
    else:
        url = f"memory://{tmp_path.name}"
        with worker_in_thread(url, tasks, processes_count=2):
            yield functools.partial(engines.load, engine="worker-based", url=url)


@pytest.fixture(params=["serial", "threads", "worker"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    """Return `engines.load` for a kind of engine without child processes."""
    if request.param != "worker":
        engine = "serial" if request.param == "serial" else "parallel"
        yield functools.partial(engines.load, engine=engine)
    else:
        url = f"memory://{tmp_path.name}"
        with worker_in_thread(url, tasks, threads_count=2):
            yield functools.partial(engines.load, engine="worker-based", url=url)


def process_pool() -> futures.Executor:
    return futures.ProcessPoolExecutor(1)


def loop_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(("wbengine-loop", "asyncio"))}


def run(load: Load, flow: Any, **store: Any) -> Any:
    loaded = load(flow, store=store)
    loaded.run()
    return loaded.storage


# -- coroutine tasks -----------------------------------------------------------------------------


def test_coroutine_results_are_stored_and_passed_on(load: Load) -> None:
    flow = linear_flow.Flow("f").add(
        tasks.Double(), tasks.Double("again", provides="four", rebind=["double"]), tasks.greet()
    )
    storage = run(load, flow, x=3, name="you")
    assert storage.fetch("four") == 12
    assert storage.fetch("greeting") == "hello you"


def test_coroutine_reverts_and_hooks_are_awaited(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "file"
    flow = linear_flow.Flow("f").add(tasks.Write("w"), tasks.Fail("bad"))
    loaded = load(flow, store={"path": str(path), "how": "value"})
    with pytest.raises(ValueError, match="value"):
        loaded.run()
    assert not path.exists()
    text = Path(f"{path}.reverted").read_text(encoding="utf-8")
    assert text == f"{path}|['bad']"
    assert loaded.storage.get_revert_result("w") == "undone"
    assert loaded.storage.get_flow_state() == states.REVERTED


def test_process_uses_one_event_loop_for_all_coroutines(near: Load) -> None:
    flow = unordered_flow.Flow("f").add(*[tasks.Where(f"w{n}", provides=f"r{n}") for n in range(8)])
    storage = run(near, flow)
    found = {storage.fetch(f"r{n}") for n in range(8)}
    assert not any(plain for _, _, plain in found)
    assert len(found) == len({pid for pid, _, _ in found})


# -- concurrency ---------------------------------------------------------------------------------


class Crowd:
    """Barrier that opens when `wanted` coroutines have entered."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.now = self.most = 0
        self.full = asyncio.Event()

    async def enter(self) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.wanted:
            self.full.set()
        await self.full.wait()
        self.now -= 1
        return self.most


@pytest.mark.parametrize("given", [False, True])
def test_parallel_engine_awaits_all_ready_coroutines_at_once(given: bool) -> None:
    crowd = Crowd(1000)
    flow = unordered_flow.Flow("f")
    flow.add(*[task.FunctorTask(crowd.enter, name=f"t{n}") for n in range(1000)])
    with futures.ThreadPoolExecutor(1) as pool:
        options: Any = {"executor": pool} if given else {"max_workers": 1}
        engines.run(flow, engine="parallel", **options)
    assert crowd.most == 1000


def test_blocking_tasks_do_not_stop_coroutines() -> None:
    """Blocking tasks have their own threads. Each waits for the coroutine beside it."""
    over = [threading.Event() for _ in range(2)]

    async def opens(number: int) -> None:
        await asyncio.sleep(0)
        over[number].set()

    flow = unordered_flow.Flow("f")
    for number, event in enumerate(over):
        blocks = functools.partial(event.wait, 60)
        flow.add(
            task.FunctorTask(
                blocks, name=f"blocks{number}", provides=f"r{number}", auto_extract=False
            ),
            task.FunctorTask(opens, name=f"opens{number}", inject={"number": number}),
        )
    found = engines.run(flow, engine="parallel", max_workers=2)
    assert found == {"r0": True, "r1": True}


@pytest.mark.parametrize("kind", ["serial", "worker"])
def test_coroutines_of_one_slot_run_one_at_a_time(kind: str, tmp_path: Path) -> None:
    """A waiting coroutine occupies the slot of a worker, and the serial engine."""
    url = f"memory://{tmp_path.name}"
    flow = unordered_flow.Flow("f").add(*[tasks.CountsConcurrency(f"m{n}") for n in range(8)])
    tasks.CountsConcurrency.most = 0
    with worker_in_thread(url, tasks, threads_count=1):
        options: Any = {} if kind == "serial" else {"engine": "worker-based", "url": url}
        engines.run(flow, **options)
    assert tasks.CountsConcurrency.most == 1


def test_map_of_coroutines_obeys_max_in_flight() -> None:
    crowd = Crowd(7)

    async def enter(number: int) -> int:
        await crowd.enter()
        return number

    inner = task.FunctorTask(enter, name="i")
    made = task.Map(inner, over="numbers", item="number", max_in_flight=7, name="m", provides="r")
    numbers = list(range(40))
    found = engines.run(made, store={"numbers": numbers}, engine="parallel", max_workers=1)
    assert found["r"] == numbers
    assert crowd.most == 7


def test_local_coroutine_runs_in_engine_process(tmp_path: Path) -> None:
    """`local` also applies if all other tasks go to workers."""
    here = tasks.Where("w", provides="where")
    here.local = True
    url = f"filesystem://{tmp_path / 'broker'}"
    storage = engines.run(here, engine="worker-based", url=url)
    assert storage["where"][0] == os.getpid()


def test_suspend_waits_for_running_coroutine(tmp_path: Path) -> None:
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    flow = linear_flow.Flow("f").add(tasks.WaitFor("w"), tasks.Double("d", inject={"x": 1}))
    loaded = engines.load(flow, store=store, engine="parallel")
    thread = threading.Thread(target=loaded.run)
    thread.start()
    until((tmp_path / "started").exists)
    loaded.suspend()
    assert thread.is_alive()
    (tmp_path / "release").touch()
    thread.join(60)
    assert loaded.storage.get_flow_state() == states.SUSPENDED
    assert loaded.storage.get_atoms_states(["w", "d"])["w"][0] == states.SUCCESS
    loaded.run()
    assert loaded.storage.fetch("double") == 2


# -- awaiting engines ----------------------------------------------------------------------------


def test_arun_does_not_block_the_event_loop(near: Load, tmp_path: Path) -> None:
    """The flow ends only after another coroutine releases its task."""
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    loaded = near(tasks.WaitFor(), store=store)

    async def releases() -> None:
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.005)
        (tmp_path / "release").touch()

    async def main() -> None:
        other = asyncio.create_task(releases())
        assert await loaded.arun() is None
        await other

    asyncio.run(main())
    assert loaded.storage.fetch("waited") == "released"
    assert len(loaded.notifier) == 0


def test_arun_accepts_the_options_of_run() -> None:
    found = asyncio.run(engines.arun(tasks.Double(), {"x": 4}, engine="parallel", max_workers=1))
    assert found == {"x": 4, "double": 8}
    with pytest.raises(exceptions.NotFound, match="paralel"):
        asyncio.run(engines.arun(tasks.Double(), {"x": 4}, engine="paralel"))
    with pytest.raises(exceptions.MissingDependencies, match="'x'"):
        asyncio.run(engines.arun(tasks.Double()))


class ThreadsOfStore(_memory.MemoryBackend):
    """Backend that records the threads in which it is opened, used and closed."""

    threads: ClassVar[list[tuple[str, threading.Thread]]] = []

    def __init__(self, conf: Any) -> None:
        super().__init__(conf)
        self.note("open")

    def note(self, what: str) -> None:
        self.threads.append((what, threading.current_thread()))

    def get_connection(self) -> _memory.MemoryConnection:
        self.note("use")
        return super().get_connection()

    def close(self) -> None:
        self.note("close")
        super().close()


def test_arun_opens_uses_and_closes_its_store_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these calls can block on a server."""
    info = tmp_path / "stores-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stores\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[wbengine.persistence]\nthreads = {__name__}:ThreadsOfStore\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = asyncio.run(engines.arun(tasks.Double(), {"x": 4}, backend="threads"))
    assert found["double"] == 8
    first = dict(reversed(ThreadsOfStore.threads))
    assert first.keys() == {"open", "use", "close"}
    assert threading.current_thread() not in first.values()


def nothing() -> None:
    pass


def stop_iteration() -> None:
    raise StopIteration(5)


def test_arun_raises_the_exceptions_of_run() -> None:
    flow = unordered_flow.Flow("f").add(tasks.Fail("a"))
    with pytest.raises(ValueError, match="why"):
        asyncio.run(engines.arun(flow, {"how": "why"}))
    with pytest.raises(SystemExit):
        asyncio.run(engines.arun(flow, {"how": "exit"}))
    # A coroutine cannot raise StopIteration.
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(engines.arun(task.FunctorTask(stop_iteration)))


def test_arun_outside_asyncio_names_the_blocking_call() -> None:
    """An example is a coroutine of `trio.run`, which has no loop of asyncio."""
    flow = linear_flow.Flow("f").add(tasks.greet())
    for awaitable in (engines.arun(flow), engines.load(flow, store={"name": "you"}).arun()):
        with pytest.raises(RuntimeError, match=r"asyncio event loop\. .* trio\.to_thread"):
            awaitable.send(None)


def test_fifty_engines_are_awaited_concurrently() -> None:
    """All flows are inside their first task at the same time."""
    inside, full = 0, threading.Event()

    async def enter() -> None:
        nonlocal inside
        inside += 1
        if inside == 50:
            full.set()

    def waits() -> bool:
        return full.wait(60)

    async def main() -> list[Any]:
        flows = []
        for number in range(50):
            flow = linear_flow.Flow(f"f{number}")
            flow.add(task.FunctorTask(enter), task.FunctorTask(waits, provides="met"))
            flows.append(engines.arun(flow, engine="parallel" if number % 2 else "serial"))
        return await asyncio.gather(*flows)

    # Each engine has its own loop, so several threads increment `inside`.
    assert asyncio.run(main()) == [{"met": True}] * 50


def test_tasks_see_the_context_of_the_awaiting_coroutine() -> None:
    """Coroutines and plain tasks in the engine's thread see it."""

    async def main() -> Any:
        tasks.who.set("me")
        seen = functools.partial(task.FunctorTask, lambda: tasks.who.get(), name="plain")
        flow = linear_flow.Flow("f").add(tasks.Named("n", provides="named"), seen(provides="seen"))
        return await engines.arun(flow)

    found = asyncio.run(main())
    assert found == {"named": ["me", "n"], "seen": "me"}


def cancelled(
    load: Load, flow: Any, tmp_path: Path, times: int = 1
) -> tuple[Any, asyncio.CancelledError | None]:
    """Await a flow, cancel it during its first task, then release the task."""
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    loaded = load(flow, store=store)
    suspending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loaded.notifier.register(states.SUSPENDING, lambda *_, **__: suspending.put(None))

    async def main() -> asyncio.CancelledError | None:
        running = asyncio.create_task(loaded.arun())
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.005)
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0.01)
        await asyncio.to_thread(suspending.get)
        assert not running.done()
        (tmp_path / "release").touch()
        try:
            await running
        except asyncio.CancelledError as error:
            assert running.cancelled()
            return error
        return None

    return loaded, asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_arun_suspends_and_waits_for_running_task(
    near: Load, tmp_path: Path, times: int
) -> None:
    flow = linear_flow.Flow("f").add(tasks.WaitFor("w"), tasks.Double("d", inject={"x": 1}))
    loaded, error = cancelled(near, flow, tmp_path, times)
    assert isinstance(error, asyncio.CancelledError)
    storage = loaded.storage
    assert storage.get_flow_state() == states.SUSPENDED
    assert storage.get_atom_state("w") == states.SUCCESS
    assert storage.get_atom_state("d") == states.PENDING
    asyncio.run(loaded.arun())
    assert storage.fetch_all()["double"] == 2
    assert storage.record("w").attempt == 1


class Held(_local.SerialActionEngine):
    """Engine that blocks at the named method before it runs."""

    def hold_at(self, method: str) -> None:
        self.method = method
        self.there, self.go = threading.Event(), threading.Event()

    def hold(self, method: str) -> None:
        if method == self.method:
            self.there.set()
            self.go.wait()

    def compile(self) -> None:
        self.hold("compile")
        super().compile()

    def validate(self) -> None:
        self.hold("validate")
        super().validate()


@pytest.mark.parametrize("method", ["compile", "validate"])
def test_arun_cancelled_before_the_run_starts_suspends_the_flow(method: str) -> None:
    """The engine suspends as soon as the run exists."""
    engine = Held(tasks.Double("d"), models.FlowDetail("f"))
    engine.storage.inject({"x": 1})
    engine.hold_at(method)

    def awaited() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "wbengine-awaited"]

    async def main() -> None:
        running = asyncio.create_task(engine.arun())
        while not engine.there.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.sleep(0)  # start the suspension
        while len(awaited()) > 1:
            await asyncio.sleep(0.001)
        engine.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.record("d").attempt == 0
    engine.run()
    assert engine.storage.fetch("double") == 2


def test_arun_that_is_cancelled_while_suspending_suspends_the_flow() -> None:
    engine = Held(tasks.Double("d"), models.FlowDetail("f"))
    engine.storage.inject({"x": 1})
    engine.hold_at("listener")
    engine.notifier.register(states.RUNNING, lambda *_, **__: engine.suspend())
    engine.notifier.register(states.SUSPENDING, lambda *_, **__: engine.hold("listener"))

    async def main() -> None:
        running = asyncio.create_task(engine.arun())
        while not (engine.there.is_set() or running.done()):
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.sleep(0.1)  # the suspension is another request
        engine.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert engine.storage.get_flow_state() == states.SUSPENDED


def test_flow_resumes_after_arun_is_cancelled_at_any_step() -> None:
    """The next run completes the flow from any state that the cancelled run left."""

    async def main(steps: int) -> None:
        loaded: Any = engines.load(
            linear_flow.Flow("f").add(*[task.FunctorTask(nothing, name=f"t{n}") for n in range(50)])
        )
        running = asyncio.create_task(loaded.arun())
        for _ in range(steps):
            await asyncio.sleep(0)
        if running.cancel():
            with pytest.raises(asyncio.CancelledError):
                await running
        state = loaded.storage.get_flow_state()
        assert state in (states.PENDING, states.SUSPENDED, states.SUCCESS)
        await loaded.arun()
        assert loaded.storage.get_flow_state() == states.SUCCESS
        assert {loaded.storage.record(f"t{n}").attempt for n in range(50)} <= {1, 2}

    for steps in range(40):
        asyncio.run(main(steps))


def test_wait_for_timeout_around_arun_suspends_the_flow(tmp_path: Path) -> None:
    """`asyncio.wait_for` cancels `arun`, which suspends the flow."""
    release = tmp_path / "release"
    store = {"started": str(tmp_path / "started"), "release": str(release)}
    loaded = engines.load(tasks.WaitFor("w"), store=store)
    loaded.notifier.register(states.SUSPENDING, lambda *_, **__: release.touch())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loaded.arun(), 0.03)

    asyncio.run(main())
    release.touch()  # in case the timeout expired before the task started
    # The flow has one task. If that task has ended, the flow succeeds.
    assert loaded.storage.get_flow_state() in (states.SUSPENDED, states.SUCCESS)
    loaded.run()
    assert loaded.storage.fetch("waited") == "released"


def test_failure_during_cancelled_arun_is_stored(tmp_path: Path) -> None:
    class Fails(tasks.WaitFor):
        async def execute(self, started: str, release: str) -> str:
            await super().execute(started, release)
            raise LookupError("too late")

    loaded, error = cancelled(engines.load, Fails("f"), tmp_path)
    assert isinstance(error, asyncio.CancelledError)
    assert loaded.storage.get_execute_failures()["f"].check(LookupError)


def test_second_arun_of_running_engine_is_rejected(tmp_path: Path) -> None:
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    loaded = engines.load(tasks.WaitFor("w"), store=store)

    async def main() -> None:
        first = asyncio.create_task(loaded.arun())
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.005)
        with pytest.raises(exceptions.ExecutionFailure, match="already running"):
            await loaded.arun()
        (tmp_path / "release").touch()
        await first

    asyncio.run(main())
    assert loaded.storage.get_flow_state() == states.SUCCESS


def test_run_works_inside_a_running_event_loop() -> None:
    """`run` blocks the loop; the coroutines run in a loop of the engine."""

    async def main() -> Any:
        return engines.run(tasks.Double(), {"x": 1}), engines.run(
            tasks.Double(), {"x": 2}, engine="parallel"
        )

    assert asyncio.run(main()) == ({"x": 1, "double": 2}, {"x": 2, "double": 4})


def test_coroutine_task_awaits_another_engine() -> None:
    """No thread waits for the inner flow."""

    async def outer() -> Any:
        return (await engines.arun(tasks.Double(), {"x": 5}))["double"]

    flow = linear_flow.Flow("f").add(task.FunctorTask(outer, provides="found"))
    assert engines.run(flow, engine="parallel")["found"] == 10
    assert engines.run(flow)["found"] == 10


def test_arun_raises_when_deadline_passes() -> None:
    flow = linear_flow.Flow("f").add(
        tasks.CountsConcurrency("m"), tasks.Double("d", inject={"x": 1})
    )
    for found in (
        lambda: asyncio.run(engines.arun(flow, deadline=0.001)),
        lambda: engines.run(flow, deadline=0.001),
        lambda: asyncio.run(engines.load(flow).arun(deadline=0.001)),
    ):
        with pytest.raises(exceptions.DeadlineExceeded):
            found()


# -- strict results ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_strict_results_are_off_by_default(kind: str) -> None:
    storage = run(
        functools.partial(engines.load, engine=kind), tasks.ReturnsUnstorable("g"), what="object"
    )
    assert type(storage.fetch("given")["x"][0]) is object
    engines.run(
        tasks.ReturnsUnstorable("g"),
        engine=f"{kind}://?strict_results=no",
        store={"what": "object"},
    )
