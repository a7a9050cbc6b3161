"""Ctrl-C during a task in the main thread: the flow is suspended and resumes later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import interrupted, python
from tests.support.workers import REPOSITORY, until
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends import impl_memory

SUCCESS, REVERTED, PENDING = states.SUCCESS, states.REVERTED, states.PENDING
RUNNING, REVERTING = states.RUNNING, states.REVERTING


def press_ctrl_c() -> None:
    """Send Ctrl-C to this process."""
    signal.raise_signal(signal.SIGINT)


async def press_ctrl_c_during_await() -> None:
    """Send Ctrl-C while the main thread waits for this coroutine."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def woken() -> Iterator[None]:
    """Let the main thread notice each Ctrl-C at once."""
    with interrupted.waking_main_thread():
        yield


class Step(task.Task):
    """Task that records its calls, and presses Ctrl-C once in each call in `pressed`."""

    def __init__(self, name: str, log: list[str], *pressed: str, **more: Any) -> None:
        super().__init__(name)
        self._log, self._pressed = log, list(pressed)
        for key, value in more.items():
            setattr(self, key, value)

    def does(self, what: str) -> None:
        self._log.append(f"{what}{self.name}")
        if what in self._pressed:
            self._pressed.remove(what)
            press_ctrl_c()

    def execute(self) -> str:
        self.does("+")
        return self.name

    def revert(self, *args: Any, **kwargs: Any) -> None:
        self.does("-")


class Hooked(Step):
    def pre_execute(self) -> None:
        self.does("pre")

    def post_execute(self) -> None:
        self.does("post")


class Awaited(Step):
    async def execute(self) -> str:  # type: ignore[override]
        self._log.append(f"+{self.name}")
        if "+" in self._pressed:
            self._pressed.remove("+")
            await press_ctrl_c_during_await()
        return self.name


class Fails(task.Task):
    def execute(self) -> None:
        raise LookupError("no")


def state_of(engine: Any, *names: str) -> list[str]:
    return [engine.storage.get_atom_state(name) for name in names]


class Stored:
    """Flow in a store; each run loads it again."""

    def __init__(self, flow: Any, backend: str, **options: Any) -> None:
        self.flow, self.options = flow, options
        self.backend = backends.fetch(backend)
        book, self.detail = models.LogBook("b"), models.FlowDetail("f")
        book.add(self.detail)
        self.backend.get_connection().save_logbook(book)

    def load(self) -> Any:
        detail = self.backend.get_connection().get_flow_details(self.detail.uuid)
        return engines.load(self.flow, flow_detail=detail, backend=self.backend, **self.options)

    def read_states(self) -> tuple[str | None, dict[str, str | None]]:
        detail = self.backend.get_connection().get_flow_details(self.detail.uuid)
        return detail.state, {atom.name: atom.state for atom in detail}


@pytest.fixture(params=["memory", "dir", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URI of a store."""
    return {
        "memory": "memory",
        "dir": f"dir://{tmp_path}/store",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
    }[request.param]


def test_ctrl_c_in_task_suspends_flow_and_next_run_resumes(place: str) -> None:
    log: list[str] = []
    flow = linear_flow.Flow("f").add(Step("a", log), Step("b", log, "+"), Step("c", log))
    stored = Stored(flow, place)
    with pytest.raises(KeyboardInterrupt):
        stored.load().run()
    assert log == ["+a", "+b"]
    assert stored.read_states() == (states.SUSPENDED, {"a": SUCCESS, "b": RUNNING, "c": PENDING})
    engine = stored.load()
    engine.run()
    assert log == ["+a", "+b", "+b", "+c"]
    assert stored.read_states() == (SUCCESS, {"a": SUCCESS, "b": SUCCESS, "c": SUCCESS})
    assert engine.storage.get_attempt("b").attempt == 2


def test_ctrl_c_in_task_starts_no_other_ready_task() -> None:
    log: list[str] = []
    flow = unordered_flow.Flow("f").add(Step("a", log, "+"), Step("b", log))
    engine = engines.load(flow)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert log == ["+a"]
    assert state_of(engine, "a", "b") == [RUNNING, PENDING]


def test_ctrl_c_in_revert_suspends_and_next_run_repeats_revert(place: str) -> None:
    log: list[str] = []
    flow = linear_flow.Flow("f").add(Step("a", log), Step("b", log, "-"), Fails("x"))
    stored = Stored(flow, place)
    with pytest.raises(KeyboardInterrupt):
        stored.load().run()
    assert log == ["+a", "+b", "-b"]
    assert stored.read_states() == (states.SUSPENDED, {"a": SUCCESS, "b": REVERTING, "x": REVERTED})
    with pytest.raises(LookupError, match="no"):
        stored.load().run()
    assert log == ["+a", "+b", "-b", "-b", "-a"]
    assert stored.read_states() == (REVERTED, {"a": REVERTED, "b": REVERTED, "x": REVERTED})


def test_interrupted_task_completes_before_its_revert() -> None:
    """The interrupted task may have done half of its work, so its revert must not be skipped."""
    log: list[str] = []
    engine = engines.load(linear_flow.Flow("f").add(Step("a", log, "+"), Fails("x")))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    with pytest.raises(LookupError):
        engine.run()
    assert log == ["+a", "+a", "-a"]


@pytest.mark.parametrize(
    ("made", "options", "first", "after"),
    [
        (lambda log: Hooked("t", log, "+"), {}, ["pret", "+t", "postt"], ["pret", "+t", "postt"]),
        (lambda log: Hooked("t", log, "pre"), {}, ["pret", "postt"], ["pret", "+t", "postt"]),
        (
            lambda log: Hooked("t", log, "post"), {},
            ["pret", "+t", "postt"], ["pret", "+t", "postt"],
        ),
        (lambda log: Step("t", log, "+"), {"timelimit": (50, 60)}, ["+t"], ["+t"]),
        (lambda log: Step("t", log, "+"), {"strict_results": True}, ["+t"], ["+t"]),
        (lambda log: Awaited("t", log, "+"), {}, ["+t"], ["+t"]),
        (lambda log: Awaited("t", log, "+"), {"timelimit": (50, 60)}, ["+t"], ["+t"]),
        (
            lambda log: task.Map(Item("t", log, "+"), over="items"), {"store": {"items": [1, 2]}},
            ["+t[0]"], ["+t[0]", "+t[1]"],
        ),
    ],
    ids=[
        "execute with hooks", "pre_execute", "post_execute", "time limit", "strict results",
        "coroutine", "coroutine with time limit", "item",
    ],
)  # fmt: skip
def test_ctrl_c_in_hook_body_or_item_of_a_task_suspends_flow(
    made: Any, options: Any, first: list[str], after: list[str]
) -> None:
    log: list[str] = []
    engine = engines.load(linear_flow.Flow("f").add(made(log)), **options)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert log == first
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run()
    assert log == first + after
    assert engine.storage.get_flow_state() == states.SUCCESS


class Item(Step):
    def execute(self, item: int) -> int:  # type: ignore[override]
        self.does("+")
        return item


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("where", ["execute", "revert"])
def test_ctrl_c_in_retry_controller_suspends_flow(kind: str, where: str) -> None:
    """Retry controllers run in the engine's thread on every kind of engine."""
    log: list[str] = []

    class Counts(retry.AlwaysRevert):
        def execute(self, history: Any, *args: Any, **kwargs: Any) -> None:
            log.append("execute")
            if where == "execute" and log.count("execute") == 1:
                press_ctrl_c()

        def revert(self, *args: Any, **kwargs: Any) -> None:
            log.append("revert")
            if where == "revert" and log.count("revert") == 1:
                press_ctrl_c()

    flow = linear_flow.Flow("f", Counts("r")).add(Fails("x"))
    engine = engines.load(flow, engine=kind)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert state_of(engine, "r") == [RUNNING if where == "execute" else REVERTING]
    with pytest.raises(LookupError):
        engine.run()
    again = ["execute", "execute", "revert"] if where == "execute" else ["execute", *["revert"] * 2]
    assert log == again
    assert engine.storage.get_flow_state() == states.REVERTED


def test_ctrl_c_leaves_detached_task_to_the_next_run() -> None:
    """Nothing is cancelled, and the next run recovers the same request."""
    log: list[Any] = []

    class Outside(task.Task):
        detached = True

        async def execute(self) -> str:
            assert self.request is not None
            log.append((self.request.id, self.request.recovered))
            if not self.request.recovered:
                try:
                    await press_ctrl_c_during_await()
                except asyncio.CancelledError:
                    log.append("left" if self.request.left else "called off")
                    raise
            return "done"

    engine = engines.load(Outside("o", provides="outcome"))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run()
    (begun, _), left, (found, recovered) = log
    assert (left, recovered) == ("left", True)
    assert begun == found
    assert engine.storage.fetch("outcome") == "done"


class Terminated(BaseException):
    """Exception of a signal handler that stops a service."""


@pytest.fixture
def terminating() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM."""

    def handle(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    yield
    signal.signal(signal.SIGTERM, before)


class Ends(task.Task):
    """Task that raises `error` (None: receives SIGTERM) the first time and records its calls."""

    def __init__(self, name: str, error: BaseException | None, log: Path) -> None:
        super().__init__(name)
        self.error, self.log = error, str(log)

    def execute(self) -> None:
        begun = self._note("+")
        if begun == 1:
            if self.error is not None:
                raise self.error
            signal.raise_signal(signal.SIGTERM)

    def revert(self, *args: Any, **kwargs: Any) -> None:
        self._note("-")

    def _note(self, what: str) -> int:
        with open(self.log, "a+", encoding="utf-8") as file:
            file.write(what)
            file.seek(0)
            return len(file.read())


@pytest.mark.parametrize(
    "controller",
    [None, retry.Times(5, "r")],
    ids=["no retry", "retry"],
)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"engine": "serial"}, SystemExit(3)),
        ({"engine": "serial"}, KeyboardInterrupt("3")),
        ({"engine": "serial", "timelimit": (50, 60)}, SystemExit(3)),
        ({"engine": "parallel"}, SystemExit(3)),
        ({"engine": "parallel"}, KeyboardInterrupt("3")),
        ({"engine": "parallel"}, Terminated("3")),
        ({"engine": "parallel", "executor": "processes"}, SystemExit(3)),
        ({"engine": "parallel", "executor": "processes"}, KeyboardInterrupt("3")),
    ],
    ids=[
        "serial exit",
        "serial interrupt",
        "serial exit with time limit",
        "threads exit",
        "threads interrupt",
        "threads other",
        "processes exit",
        "processes interrupt",
    ],
)
def test_base_exception_in_task_suspends_flow_and_is_raised(
    options: Any, error: BaseException, controller: Any, tmp_path: Path
) -> None:
    """The exception is not retried and nothing is reverted. The next run resumes."""
    log: list[str] = []
    ending = Ends("e", error, tmp_path / "log")
    flow = linear_flow.Flow("f", controller).add(Step("a", log), ending, Step("z", log))
    place = f"sqlite:///{tmp_path}/store.db"
    stored = Stored(flow, place, **options, local_tasks=["a", "z"])
    with pytest.raises(type(error), match="3"):
        stored.load().run()
    state, atoms = stored.read_states()
    assert (state, atoms["a"], atoms["e"], atoms["z"]) == (
        states.SUSPENDED,
        SUCCESS,
        RUNNING,
        PENDING,
    )
    stored.load().run()
    assert stored.read_states()[0] == SUCCESS
    assert (log, Path(ending.log).read_text()) == (["+a", "+z"], "++")


def test_result_of_task_running_beside_system_exit_is_saved(place: str) -> None:
    """The other task completes first. Both tasks that raised SystemExit run again."""
    gate, log = threading.Barrier(3), []

    class Meets(task.Task):
        def execute(self) -> str:
            log.append(self.name)
            if len(log) <= 3:
                gate.wait(30)
                if self.name != "kept":
                    sys.exit(self.name)
            return self.name

    flow = unordered_flow.Flow("f").add(Meets("kept"), Meets("x"), Meets("y"))
    stored = Stored(flow, place, engine="parallel", max_workers=3)
    with pytest.raises(SystemExit, match=r"x|y"):
        stored.load().run()
    assert stored.read_states() == (states.SUSPENDED, {"kept": SUCCESS, "x": RUNNING, "y": RUNNING})
    stored.load().run()
    assert stored.read_states()[0] == SUCCESS
    assert sorted(log) == ["kept", "x", "x", "y", "y"]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_map_item_that_raises_system_exit_runs_again(executor: str, tmp_path: Path) -> None:
    class_of = ItemThatEnds("i", SystemExit(3), tmp_path / "log")
    mapped = task.Map(class_of, over="items", max_in_flight=1, provides="found")
    engine = engines.load(mapped, store={"items": [1, 2]}, engine="parallel", executor=executor)
    with pytest.raises(SystemExit, match="3"):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run()
    assert engine.storage.fetch("found") == [1, 2]
    assert Path(class_of.log).read_text() == "+++"


class ItemThatEnds(Ends):
    def execute(self, item: int) -> int:  # type: ignore[override]
        super().execute()
        return item


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_signal_handler_that_raises_suspends_the_flow(
    kind: str, place: str, terminating: None, tmp_path: Path
) -> None:
    """The signal arrives during a task or while the engine waits."""
    log: list[str] = []

    class SignalsItself(Ends):
        def execute(self) -> None:
            if kind == "serial":
                super().execute()
            elif self._note("+") == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    ending = SignalsItself("e", None, tmp_path / "log")
    flow = linear_flow.Flow("f", retry.Times(5, "r")).add(Step("a", log), ending, Step("z", log))
    stored = Stored(flow, place, engine=kind)
    with pytest.raises(Terminated):
        stored.load().run()
    state, atoms = stored.read_states()
    assert (state, atoms["a"], atoms["z"]) == (states.SUSPENDED, SUCCESS, PENDING)
    # If the engine was waiting, the task completes in its thread.
    assert atoms["e"] == (RUNNING if kind == "serial" else SUCCESS)
    stored.load().run()
    assert stored.read_states()[0] == SUCCESS
    assert log == ["+a", "+z"]


def test_sys_exit_in_serial_engine_of_another_thread_suspends_flow() -> None:
    log: list[str] = []
    engine = engines.load(linear_flow.Flow("f").add(Step("a", log), Leaves("l")))

    def run() -> None:
        with pytest.raises(SystemExit, match="mine"):
            engine.run()
        log.append("raised")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert log == ["+a", "raised"]


class Leaves(task.Task):
    def execute(self) -> None:
        sys.exit("mine")


def test_sys_exit_in_revert_suspends_and_next_run_repeats_revert(tmp_path: Path) -> None:
    reverting = ExitsInRevert("e", None, tmp_path / "log")
    engine = engines.load(
        linear_flow.Flow("f").add(reverting, Fails("x")), engine="parallel", executor="threads"
    )
    with pytest.raises(SystemExit, match="3"):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert state_of(engine, "e") == [REVERTING]
    with pytest.raises(LookupError):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


class ExitsInRevert(Ends):
    def execute(self) -> None:
        pass

    def revert(self, *args: Any, **kwargs: Any) -> None:
        if self._note("-") == 1:
            sys.exit(3)


# Separate processes -----------------------------------------------------------------------------


class Slow(task.Task):
    """Task that records its start and waits for a file."""

    def execute(self, folder: str) -> None:
        self._wait(Path(folder), "execute")

    def revert(self, folder: str, result: Any, flow_failures: Any) -> None:
        self._wait(Path(folder), "revert")

    def _wait(self, folder: Path, what: str) -> None:
        with (folder / "log").open("a") as file:
            file.write(f"{what}\n")
        while not (folder / f"go.{what}").exists():
            time.sleep(0.01)


class Breaks(task.Task):
    def execute(self, folder: str) -> None:
        if (Path(folder) / "break").exists():
            raise LookupError("broken")


def slow_flow() -> Any:
    return linear_flow.Flow("slow").add(Slow("s"), Breaks("b"))


#: Program that runs the flow for the first time, or resumes it.
PROGRAM = """
import sys
from tests.integration import test_ctrl_c as here
from wbengine import engines
from wbengine.persistence import backends

folder = sys.argv[1]
backend = backends.fetch(f"sqlite:///{folder}/store.db")
details = [flow for book in backend.get_connection().get_logbooks() for flow in book]
if details:
    engine = engines.load_from_detail(details[0], backend=backend)
else:
    engine = engines.load_from_factory(here.slow_flow, store={"folder": folder}, backend=backend)
engine.run()
"""


def program(folder: Path) -> subprocess.Popen[str]:
    return python.start(
        ["-c", PROGRAM, str(folder)],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("where", ["execute", "revert"])
def test_flow_of_program_ended_by_ctrl_c_resumes_in_the_next_process(
    where: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    if where == "revert":
        (tmp_path / "break").touch()
        (tmp_path / "go.execute").touch()
    process = program(tmp_path)
    until(lambda: process.poll() is not None or (log.exists() and where in log.read_text()))
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    # Python ends an interrupted process in this way.
    assert process.returncode == -signal.SIGINT, told
    assert told.rstrip().endswith("KeyboardInterrupt")
    backend = backends.fetch(f"sqlite:///{tmp_path}/store.db")
    ((detail,),) = backend.get_connection().get_logbooks()
    assert detail.state == states.SUSPENDED
    assert {atom.name: atom.state for atom in detail if atom.name in "sb"} == (
        {"s": RUNNING, "b": PENDING} if where == "execute" else {"s": REVERTING, "b": REVERTED}
    )
    (tmp_path / f"go.{where}").touch()
    process = program(tmp_path)
    told = process.communicate(timeout=60)[1]
    ((detail,),) = backend.get_connection().get_logbooks()
    if where == "execute":
        assert (process.returncode, detail.state) == (0, states.SUCCESS), told
        assert log.read_text().split() == ["execute", "execute"]
    else:
        assert detail.state == states.REVERTED, told
        assert "WrappedFailure[LookupError]: broken" in told.splitlines()[-1]
        assert log.read_text().split() == ["execute", "revert", "revert"]


# Ctrl-C during detached tasks: their requests are recovered by the next run.


class Outside(task.Task):
    """Task that waits in its first run, and returns at once if it is recovered."""

    detached = True
    local = True

    def __init__(self, name: str, log: list[tuple[str, Any]]) -> None:
        super().__init__(name, provides=f"{name}_done")
        self._log = log

    async def execute(self) -> str:
        assert self.request is not None
        if self.request.recovered:
            self._log.append(("found", self.request.id))
            return "done"
        try:
            self._log.append(("begun", self.request.id))
            await asyncio.sleep(20)
            self._log.append(("ended", self.request.id))
        except BaseException:
            self._log.append(("left" if self.request.left else "cancelled", self.cancelled))
            raise
        return "done"


def run_until_interrupted(engine: Any, ready: Callable[[], bool]) -> None:
    """Run an engine, and press Ctrl-C once `ready` returns True."""

    def interrupt() -> None:
        until(ready)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    pressing.join()


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize(
    "limit",
    [None, (15.0, 18.0)],
    ids=["no time limit", "time limit"],
)
def test_ctrl_c_does_not_wait_for_detached_tasks(executor: str, limit: Any) -> None:
    log: list[tuple[str, Any]] = []
    flow = unordered_flow.Flow("f").add(*(Outside(f"t{n}", log) for n in range(5)))
    engine = engines.load(flow, engine="parallel", executor=executor, timelimit=limit)
    run_until_interrupted(engine, lambda: len(log) == 5)
    begun = {id for kind, id in log[:5] if kind == "begun"}
    assert len(begun) == 5 and log[5:] == [("left", False)] * 5
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert {engine.storage.get_atom_state(f"t{n}") for n in range(5)} == {states.RUNNING}
    engine.run()
    assert set(log[10:]) == {("found", id) for id in begun}
    assert engine.storage.fetch_all() == {f"t{n}_done": "done" for n in range(5)}


def test_ctrl_c_waits_for_revert_of_detached_task() -> None:
    """The engine waits for reverts, as it does for tasks that are not detached."""
    log: list[str] = []

    class Undone(task.Task):
        detached = True

        async def execute(self) -> None: ...

        async def revert(self, *args: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.2)
            log.append("reverted")

    class Fails(task.Task):
        def execute(self) -> None:
            raise LookupError("no")

    flow = linear_flow.Flow("f").add(Undone("u"), Fails("x"))
    engine = engines.load(flow, engine="parallel")
    with pytest.raises((KeyboardInterrupt, LookupError)):
        engine.run()
    assert log == ["reverted"]


class Begins(task.Task):
    """Detached task whose operation continues when the flow is interrupted."""

    detached = True
    local = True

    async def execute(self, heard: str) -> None:
        pathlib.Path(heard, self.name).touch()
        await asyncio.sleep(60)


class Finds(task.Task):
    """Detached task of the next run, which records `recovered` and `cancelled`."""

    detached = True

    def execute(self, heard: str, cancelled: bool) -> None:
        assert self.request is not None
        if cancelled:  # another process learns this after a delay
            until(lambda: self.cancelled)
        pathlib.Path(heard, self.name).write_text(f"{self.request.recovered} {self.cancelled}")


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_recovered_detached_task_is_called_even_if_cancelled(
    executor: str, cancelled: bool, tmp_path: pathlib.Path
) -> None:
    """The pool has one slot, so two of the three tasks wait."""
    backend, names, store = impl_memory.MemoryBackend(), ("a", "b", "c"), {"heard": str(tmp_path)}
    begins = engines.load(
        unordered_flow.Flow("f").add(*map(Begins, names)),
        engine="parallel", backend=backend, store=store,
    )  # fmt: skip
    run_until_interrupted(begins, lambda: len(list(tmp_path.iterdir())) == 3)
    with contextlib.closing(backend.get_connection()) as connection:
        kept = connection.get_flow_details(begins.storage.flow_uuid)
    finds = engines.load(
        unordered_flow.Flow("f").add(*map(Finds, names)), flow_detail=kept,
        engine="parallel", executor=executor, max_workers=1, backend=backend,
        store={"cancelled": cancelled},
    )  # fmt: skip
    if cancelled:
        finds.notifier.register(states.RUNNING, lambda *_, **__: finds.cancel())
    with contextlib.suppress(exceptions.Cancelled):
        finds.run()
    heard = {found.name: found.read_text() for found in tmp_path.iterdir()}
    assert heard == dict.fromkeys(names, f"True {cancelled}")
