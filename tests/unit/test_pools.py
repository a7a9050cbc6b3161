"""Pools of threads and processes: the common contract, and child processes."""

from __future__ import annotations

import functools
import os
import pathlib
import queue
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from tests.support import fresh, python
from tests.support.forks import answer_of_fork
from tests.support.threads import call_in_threads
from tests.support.waiting import until
from tests.unit import pool_calls as calls
from wbengine import exceptions, pools
from wbengine._concurrency import process_pool, thread_pools, time_limits
from wbengine._concurrency.call import Cancellation
from wbengine.types import failure as ft


class Door:
    """Server at which calls report their pid and wait for their release."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = str(folder / "door")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(8)
        self._server.settimeout(calls.WAIT)
        self._guests: list[socket.socket] = []

    def guest(self) -> tuple[int, socket.socket]:
        peer, _ = self._server.accept()
        peer.settimeout(calls.WAIT)
        self._guests.append(peer)
        with peer.makefile() as lines:
            return int(lines.readline()), peer

    def close(self) -> None:
        for guest in (*self._guests, self._server):
            guest.close()


@pytest.fixture
def door(tmp_path: pathlib.Path) -> Any:
    door = Door(tmp_path)
    yield door
    door.close()


@pytest.fixture(params=[pools.ThreadPool, pools.ProcessPool], ids=["threads", "processes"])
def pool(request: pytest.FixtureRequest) -> Any:
    with request.param(2) as pool:
        yield pool


@pytest.fixture
def process() -> Any:
    with pools.ProcessPool(1) as pool:
        yield pool


@pytest.fixture
def processes() -> Any:
    with pools.ProcessPool(2) as pool:
        yield pool


@pytest.fixture
def box() -> calls.Box:
    return calls.Box()


# Both kinds of pools ------------------------------------------------------------------------------


def test_result_callback_runs_in_thread_of_the_slot(pool: Any) -> None:
    seen: queue.SimpleQueue[tuple[Any, str]] = queue.SimpleQueue()
    pool.submit(
        calls.double, (21,), lambda value: seen.put((value, threading.current_thread().name))
    )
    value, thread = seen.get(timeout=calls.WAIT)
    assert value == 42
    assert thread.startswith("wbengine-")


RAISING: dict[str, tuple[Any, str, str]] = {
    "exception": (calls.boom, "LookupError", "boom"),
    "system-exit": (calls.bad_exit, "SystemExit", "enough"),
    "keyboard-interrupt": (calls.interrupt, "KeyboardInterrupt", ""),
}


@pytest.mark.parametrize(("fn", "kind", "text"), RAISING.values(), ids=RAISING)
def test_any_exception_of_a_call_becomes_a_failure(
    box: calls.Box, pool: Any, fn: Any, kind: str, text: str
) -> None:
    pool.submit(fn, (), box)
    failure = box.failure()
    assert failure.check(kind)
    assert failure.exception_str == text
    assert fn.__name__ in failure.traceback_str
    assert calls.result_of(pool, calls.double, 1) == 2


def ended(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except FileNotFoundError:
        return True
    return state.split()[0] == "Z"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes in /proc")
def test_forked_child_that_returns_from_a_call_exits(pool: Any) -> None:
    for _ in range(3):
        child = calls.result_of(pool, calls.fork)
        assert child > 0
        assert calls.result_of(pool, calls.double, 2) == 4
        deadline = time.monotonic() + calls.WAIT
        while not ended(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_cannot_use_slots_of_its_parent(box: calls.Box, pool: Any) -> None:
    unused = type(pool)(1)
    assert calls.result_of(pool, calls.double, 2) == 4
    text = "RuntimeError: pool 'wbengine' was started before this process was forked"
    for call in (lambda: pool.submit(calls.double, (2,), box), pool.start):
        assert text in answer_of_fork(call)
    for stop in (pool.stop, thread_pools.stop_all):
        assert answer_of_fork(stop) == "None"

    def run_in_fork() -> Any:
        with unused:
            return calls.result_of(unused, calls.double, 3)

    assert answer_of_fork(run_in_fork) == "6"
    assert calls.result_of(pool, calls.double, 2) == 4


def test_events_arrive_in_order_and_before_the_result(box: calls.Box, pool: Any) -> None:
    pool.submit(calls.tell, (100,), box, box.event)
    box.get()
    assert box.log == [("step", {"index": index}) for index in range(100)] + [("done", "told")]


def test_events_without_callback_are_dropped(pool: Any) -> None:
    assert calls.result_of(pool, calls.tell, 3) == "told"


def test_events_after_the_result_are_dropped(box: calls.Box, process: Any) -> None:
    process.submit(calls.tell_late, (), box, box.event)
    assert box.get() == "told"
    pids = process.pids
    for _ in range(20):
        next_box = calls.Box()
        process.submit(calls.tell, (2,), next_box, next_box.event)
        assert next_box.get() == "told"
        assert [name for name, _ in next_box.log] == ["step", "step", "done"]
    assert process.pids == pids
    assert box.log[-1] == ("done", "told")


def test_exceptions_of_callbacks_are_logged(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("full")

    box = calls.Box()
    for _ in range(4):
        pool.submit(calls.tell, (1,), refuse, refuse)
        pool.submit(calls.tell, (1,), box, refuse)
    for _ in range(4):
        assert box.get() == "told"
    pool.stop()
    assert sum("callback for the result" in line for line in caplog.messages) == 4
    assert sum("callback for event 'step'" in line for line in caplog.messages) == 8


def test_withdraw_returns_calls_not_started(box: calls.Box, pool: Any, door: Door) -> None:
    running = [pool.submit(calls.knock, (door.path,), box) for _ in range(2)]
    guests = [door.guest()[1] for _ in range(2)]
    assert pool.idle == 0
    waiting = [pool.submit(calls.double, (n,), box) for n in range(3)]
    assert pool.withdraw() == waiting
    assert pool.withdraw() == []
    for guest in guests:
        guest.close()
    pool.stop()
    assert len(box.log) == len(running)


def test_pool_counts_idle_slots(box: calls.Box, pool: Any, door: Door) -> None:
    assert (pool.size, pool.idle) == (2, 2)
    pool.submit(calls.knock, (door.path,), box)
    _, guest = door.guest()
    assert pool.idle == 1
    guest.close()
    box.get()
    assert pool.idle == 2


def test_stop_finishes_submitted_calls_and_rejects_new_ones(box: calls.Box, pool: Any) -> None:
    for value in range(20):
        pool.submit(calls.double, (value,), box)
    pool.stop()
    assert sorted(value for _, value in box.log) == [2 * value for value in range(20)]
    with pytest.raises(RuntimeError, match="stopped"):
        pool.submit(calls.double, (1,), box)
    with pytest.raises(RuntimeError, match="stopped"):
        pool.start()
    pool.stop()


def test_stop_with_kill_fails_calls_not_started(box: calls.Box, pool: Any, door: Door) -> None:
    for _ in range(2):
        pool.submit(calls.knock, (door.path,), box)
    guests = [door.guest()[1] for _ in range(2)]
    for value in range(3):
        pool.submit(calls.double, (value,), box)
    pool.stop(wait=False, kill=True)
    for guest in guests:
        guest.close()
    pool.stop()
    lost = [value for _, value in box.log if isinstance(value, ft.Failure)]
    assert len(box.log) == 5
    assert len(lost) == (5 if isinstance(pool, pools.ProcessPool) else 3)
    assert all(failure.check(exceptions.WorkerLost) for failure in lost)
    assert sum("was stopped before" in failure.exception_str for failure in lost) == 3


def test_stop_inside_result_callback_does_not_deadlock(pool: Any) -> None:
    stopped = threading.Event()

    def done(_: Any) -> None:
        pool.stop()
        stopped.set()

    pool.submit(calls.double, (1,), done)
    assert stopped.wait(calls.WAIT)


def test_call_can_be_submitted_inside_result_callback(box: calls.Box, pool: Any) -> None:
    pool.submit(calls.double, (1,), lambda value: pool.submit(calls.double, (value,), box))
    assert box.get() == 4


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_invalid_pool_size_is_rejected(size: Any) -> None:
    with pytest.raises(ValueError, match="size of a pool"):
        pools.ThreadPool(size)


@pytest.mark.parametrize("eager", [False, True])
def test_idle_pool_stops_without_killing_children(
    pool: Any, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children exit when their pipe is closed."""
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", calls.WAIT)
    box = calls.Box()
    if eager:
        pool.start()
        pool.start()
    for _ in range(4):
        pool.submit(calls.double, (1,), box)
    for _ in range(4):
        box.get()
    children = [child for slot in pool._slots if (child := getattr(slot, "_child", None))]
    pool.stop()
    assert bool(children) == isinstance(pool, pools.ProcessPool)
    assert [child.exit_code for child in children] == [0] * len(children)


# Processes only ---------------------------------------------------------------------------------


def test_children_are_separate_processes_without_state_of_parent(processes: Any) -> None:
    calls.set_mark("parent")
    try:
        assert calls.result_of(processes, calls.whoami) != os.getpid()
        assert calls.result_of(processes, calls.get_mark) == ""
    finally:
        calls.set_mark("")


def test_slots_start_on_demand(box: calls.Box, processes: Any) -> None:
    assert processes.pids == []
    pid = calls.result_of(processes, calls.whoami)
    assert processes.pids == [pid]
    processes.start()
    processes.submit(calls.whoami, (), box)
    assert calls.result_of(processes, calls.whoami) in processes.pids
    assert box.get() in processes.pids


@pytest.mark.parametrize(
    ("fn", "args", "text"),
    [
        pytest.param(calls.leave, (3,), "exit code 3", id="exit-3"),
        pytest.param(calls.leave, (0,), "exit code 0", id="exit-0"),
        pytest.param(calls.die, (signal.SIGKILL,), "SIGKILL", id="sigkill"),
        pytest.param(calls.die, (signal.SIGSEGV,), "SIGSEGV", id="sigsegv"),
        pytest.param(calls.die, (signal.SIGABRT,), "SIGABRT", id="sigabrt"),
        pytest.param(calls.answer_and_die, (), "exit code 7", id="exit-after-event"),
        pytest.param(calls.leave_heir, (), "exit code 5", id="exit-with-forked-child"),
    ],
)
def test_only_the_child_that_died_is_replaced(
    processes: Any, door: Door, fn: Any, args: tuple[Any, ...], text: str
) -> None:
    other, box = calls.Box(), calls.Box()
    processes.submit(calls.knock, (door.path,), other)
    pid, guest = door.guest()
    processes.submit(calls.whoami, (), box)
    victim = box.get()
    processes.submit(fn, args, box, box.event)
    failure = box.failure()
    for _, details in (entry for entry in box.log if entry[0] == "heir"):
        os.kill(details["pid"], signal.SIGKILL)
    assert failure.check(exceptions.WorkerLost)
    assert text in failure.exception_str
    assert fn.__name__ in failure.exception_str
    assert str(victim) in failure.exception_str
    processes.submit(calls.whoami, (), box)
    assert box.get() not in (pid, victim, os.getpid())
    guest.close()
    assert other.get() == pid


def test_child_that_dies_while_idle_loses_no_call(process: Any) -> None:
    first = calls.result_of(process, calls.whoami)
    fd = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    select.select([fd], [], [], calls.WAIT)
    os.close(fd)
    assert calls.result_of(process, calls.whoami) not in (first, os.getpid())


def test_hard_limit_ends_call_during_transfer_to_child(box: calls.Box, process: Any) -> None:
    """The call exceeded its limit, so it is not started again."""
    os.kill(calls.result_of(process, calls.whoami), signal.SIGSTOP)
    limit = time_limits.TimeLimit(None, 0.5)
    process.submit(calls.accept, (b"x" * 1_000_000,), box, limit=limit)
    assert box.failure().check(exceptions.TimeLimitExceeded)


def test_stop_with_kill_ends_running_call(box: calls.Box, door: Door) -> None:
    pool = pools.ProcessPool(1)
    pool.submit(calls.knock, (door.path,), box)
    door.guest()
    pool.stop(wait=False)
    pool.stop(kill=True)
    assert "SIGKILL" in box.failure().exception_str
    assert len(box.log) == 1


UNPICKLABLE: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "argument": (calls.accept, ({"x": [1, threading.Lock()]},), "call", "lock"),
    "function": (lambda emit: None, (), "call", "lambda"),
    "result": (calls.holds_lock, (), "result", "lock"),
    "exiting argument": (calls.accept, (calls.Unpicklable(),), "call", "SystemExit"),
    "exiting result": (calls.leave_thread_and_return_unpicklable, (), "result", "SystemExit"),
}


@pytest.mark.parametrize(("fn", "args", "path", "kind"), UNPICKLABLE.values(), ids=UNPICKLABLE)
def test_error_names_call_or_result_that_cannot_be_pickled(
    box: calls.Box, process: Any, fn: Any, args: tuple[Any, ...], path: str, kind: str
) -> None:
    pid = calls.result_of(process, calls.whoami)
    process.submit(fn, args, box)
    failure = box.failure()
    assert failure.check(exceptions.NotEncodable)
    assert path in failure.exception_str
    assert kind in failure.exception_str
    assert calls.result_of(process, calls.whoami) == pid


def test_event_that_cannot_be_pickled_raises_in_the_call(box: calls.Box, process: Any) -> None:
    process.submit(calls.tell_lock, (), box, box.event)
    failure = box.failure()
    assert failure.check(exceptions.NotEncodable)
    assert "event cannot be pickled" in failure.exception_str
    assert "lock" in failure.exception_str


def test_value_that_cannot_be_unpickled_becomes_a_failure(box: calls.Box, process: Any) -> None:
    for fn, args in ((calls.fragile, ()), (calls.accept, (calls.Fragile(),))):
        process.submit(fn, args, box)
        failure = box.failure()
        assert failure.check(exceptions.NotEncodable)
        assert "cannot be unpickled" in failure.exception_str


def test_exception_with_custom_constructor_is_returned(box: calls.Box, process: Any) -> None:
    process.submit(calls.strange, (), box)
    failure = box.failure()
    assert failure.check(f"{calls.Strange.__module__}.Strange")
    assert failure.exception_str == "1 and 2"


def test_large_arguments_and_results_are_passed(process: Any) -> None:
    big = b"x" * 3_000_000
    assert calls.result_of(process, calls.double, big) == big + big


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["sigint", "sighup"])
def test_children_ignore_signals_of_the_process_group(process: Any, number: int) -> None:
    assert calls.result_of(process, calls.interrupt_self, number) == "unimpressed"


def test_processes_that_a_call_forks_have_default_signal_handlers(process: Any) -> None:
    assert calls.result_of(process, calls.terminate_fork) == -signal.SIGTERM
    assert calls.result_of(process, calls.map_in_forks) == [signal.default_int_handler] * 2


@pytest.mark.parametrize("reuses_numbers", [False, True])
def test_child_that_closed_its_pipe_is_reported_as_lost(
    box: calls.Box, process: Any, reuses_numbers: bool
) -> None:
    process.submit(calls.close_all_files, (reuses_numbers,), box)
    failure = box.failure()
    assert failure.check(exceptions.WorkerLost)
    assert "exit code 75" in failure.exception_str
    assert calls.result_of(process, calls.double, 2) == 4


def test_child_whose_main_thread_has_ended_is_replaced(process: Any) -> None:
    pid = calls.result_of(process, calls.leave_thread_and_alarm)
    until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), within=5)
    assert calls.result_of(process, calls.double, 2) == 4


def test_fork_server_ignores_signals_of_the_process_group(process: Any) -> None:
    assert calls.result_of(process, calls.interrupt_parent) is False


def test_child_in_deleted_folder_fails_with_reason(
    box: calls.Box, process: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    process.submit(calls.double, (2,), box)
    failure = box.failure(FileNotFoundError)
    assert failure.exception_str == "the current folder of this process was deleted"


def test_children_inherit_the_current_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("WBENGINE_TEST", value)
        with pools.ProcessPool(1) as pool:
            assert calls.result_of(pool, calls.environment, "WBENGINE_TEST") == value


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_children_inherit_no_sockets_of_the_parent(
    box: calls.Box, processes: Any, door: Door
) -> None:
    calls.result_of(processes, calls.whoami)
    processes.submit(calls.knock, (door.path,), box)
    _, guest = door.guest()
    assert len(calls.result_of(processes, calls.open_sockets)) == 1
    guest.close()


def test_thread_left_by_a_call_does_not_delay_stop() -> None:
    pool = pools.ProcessPool(1)
    assert calls.result_of(pool, calls.leaked_thread) == "leaked"
    pool.stop()  # must not wait for the thread of the call


PARENT = """
    import os, signal, sys, threading
    sys.path.insert(0, {folder!r})
    import pool_calls
    from wbengine import pools

    if __name__ == "__main__":
        pool = pools.ProcessPool(2)
        pool.submit(pool_calls.knock, ({door!r},), print)
        pool.submit(pool_calls.knock, ({door!r},), print)
        if {ending!r} == "kill":
            threading.Event().wait()
        sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["kill", "exit"])
def test_children_end_with_their_parent(tmp_path: pathlib.Path, door: Door, ending: str) -> None:
    script = tmp_path / "parent.py"
    folder = str(pathlib.Path(__file__).parent)
    script.write_text(textwrap.dedent(PARENT).format(folder=folder, door=door.path, ending=ending))
    with fresh.process(str(script), stdin=subprocess.PIPE) as parent:
        fds = [os.pidfd_open(door.guest()[0]) for _ in range(2)]
        if ending == "kill":
            parent.kill()
        assert parent.stdin is not None
        parent.stdin.close()
        for fd in fds:
            assert select.select([fd], [], [], calls.WAIT)[0]
            os.close(fd)
        assert parent.wait(calls.WAIT) == (-signal.SIGKILL if ending == "kill" else 0)


LONG = """
import os
import queue
from wbengine import pools

def parent(emit):
    return os.getppid()

if __name__ == "__main__":
    answers = queue.SimpleQueue()
    with pools.ProcessPool(1) as pool:
        pool.submit(parent, (), answers.put)
        print(answers.get(timeout=60) == os.getpid())
"""


def test_pending_coroutines_of_child_are_cancelled_when_it_ends(
    box: calls.Box, tmp_path: pathlib.Path
) -> None:
    """All calls of a child share one event loop, which ends with the child."""
    with pools.ProcessPool(1) as pool:
        pool.submit(calls.leave_behind, (str(tmp_path / "a"),), box)
        assert calls.result_of(pool, calls.leave_behind, str(tmp_path / "b")) == box.get()
        assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_process_pool_works_with_long_temporary_folder_path(tmp_path: pathlib.Path) -> None:
    """The fork server has a socket in this folder, and paths of sockets must be short."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(LONG)
    ended = python.run(
        ["-W", "error", str(script)],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)
    assert not list(folder.iterdir())


def test_pool_works_after_interrupted_submit() -> None:
    """After Ctrl-C at any step, no lock is held and the slots work."""
    from tests.support.workers import (
        interrupted,  # `tests` cannot be imported in children
    )

    for step in range(1, 200):
        pool = pools.ThreadPool(1)
        if not interrupted(step, lambda pool=pool: pool.submit(calls.double, (1,), calls.Box())):
            break
        answered = calls.Box()
        # This runs in another thread, because a lock does not block the thread that holds it.
        other = threading.Thread(
            target=lambda pool=pool, box=answered: pool.submit(calls.double, (2,), box), daemon=True
        )
        other.start()
        assert answered.get() == 4, step
        pool.stop()
    assert step > 5
    pool.stop()


def interrupted_while_waking(step: int, call: Any) -> bool:
    """Run the call with a `KeyboardInterrupt` before opcode `step` of `_wake_last`."""
    from tests.support.workers import is_interrupted

    left = step

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code is not pools.ThreadPool._wake_last.__code__:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            left -= 1
            raise KeyboardInterrupt
        return trace

    # Python 3.12 traces opcodes only if a frame has this attribute before `sys.settrace`, and 3.13
    # only in frames whose lines are traced.
    sys._getframe().f_trace_opcodes = True
    return is_interrupted(trace, call)


@pytest.mark.parametrize("finely", [False, True])
def test_interrupted_wake_up_loses_no_idle_slot(finely: bool) -> None:
    from tests.support.workers import interrupted

    interrupt = interrupted_while_waking if finely else interrupted
    for step in range(1, 200):
        pool = pools.ThreadPool(2)
        pool.start()
        until = time.monotonic() + calls.WAIT
        while len(pool._idle) < 2:
            assert time.monotonic() < until
            time.sleep(0)
        box, first = calls.Box(), calls.Box()
        struck = interrupt(step, lambda pool=pool, box=first: pool.submit(calls.double, (1,), box))
        # This runs in another thread, because a lock does not block the thread that holds it.
        last = threading.Thread(target=_both_meet, args=(pool, box), daemon=True)
        last.start()
        assert sorted((box.get(), box.get())) == [0, 1], step
        last.join()
        pool.stop()
        if not struck:
            break
    assert step > 5


def _both_meet(pool: Any, box: calls.Box) -> None:
    """Submit two calls that wait for each other, the second after the start of the first."""
    meeting, begun = threading.Barrier(2), threading.Event()

    def meet(emit: Any) -> int:
        begun.set()
        return meeting.wait(calls.WAIT)

    pool.submit(meet, (), box)
    begun.wait(calls.WAIT)
    pool.submit(meet, (), box)


def test_no_call_waits_while_a_slot_is_idle() -> None:
    """Each slot wakes the next one. If one were not woken, the calls would wait for each other."""
    with pools.ThreadPool(4) as pool:
        for _ in range(150):
            met, box = threading.Barrier(4), calls.Box()
            for _ in range(4):
                pool.submit(lambda emit, met=met: met.wait(calls.WAIT), (), box)
            assert sorted(box.get() for _ in range(4)) == [0, 1, 2, 3]


def test_concurrent_submits_and_cancels_lose_no_call() -> None:
    box, count = calls.Box(), 300
    with pools.ThreadPool(3) as pool:

        def submit(pause: float) -> None:
            for number in range(count):
                ticket = pool.submit(lambda emit: None, (), box)
                if number % 5 == 0:
                    ticket.cancel()
                if number % 7 == 0:
                    time.sleep(pause)

        call_in_threads(submit, [n * 1e-4 for n in range(4)])
        for _ in range(4 * count):
            box.get()
        assert pool.unfinished == 0


# Calls submitted by result callbacks --------------------------------------------------------------


class Chain:
    """Result callback that submits given numbers of further calls."""

    def __init__(self, pool: Any, fn: Any, *counts: int) -> None:
        self.pool, self.fn = pool, fn
        self.counts = list(counts)
        self.threads: list[str] = []
        self.asked: list[bool] = []
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, value: Any) -> None:
        self.threads.append(threading.current_thread().name)
        for _ in range(self.counts.pop(0) if self.counts else 0):
            self.pool.submit(self.fn, (), self, lazily=True)
        self.asked.append(self.pool.has_more)
        self.ended.put(value)


def test_lazily_submitted_call_runs_in_the_submitting_thread() -> None:
    with pools.ThreadPool(4) as pool:
        pool.start()
        while len(pool._idle) < 4:  # a slot that becomes idle later takes a call
            time.sleep(0.001)
        chain = Chain(pool, calls.whoami, *[1] * 50)
        assert not pool.has_more
        pool.submit(calls.whoami, (), chain)
        for _ in range(51):
            chain.ended.get(timeout=calls.WAIT)
    assert len(set(chain.threads)) == 1
    assert chain.asked == [True] * 50 + [False]


def test_slow_callback_leaves_submitted_calls_to_other_threads() -> None:
    """The callback submits lazily and then calls `call_others`, or does not submit lazily."""
    with pools.ThreadPool(2) as pool:
        pool.start()
        for lazily in (True, False):
            inner, outer, box = calls.Box(), calls.Box(), calls.Box()

            def done(
                value: Any,
                lazily: bool = lazily,
                inner: calls.Box = inner,
                outer: calls.Box = outer,
            ) -> None:
                pool.submit(calls.double, (2,), inner, lazily=lazily)
                assert pool.in_done
                if lazily:
                    assert pool.has_more
                    pool.call_others()
                outer(inner.get())

            pool.submit(calls.double, (1,), done)
            assert outer.get() == 4
            pool.submit(lambda emit: pool.has_more or pool.in_done, (), box)
            assert box.get() is False, "it makes a call"
        assert not pool.in_done


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_several_calls_submitted_by_a_callback_run_concurrently(
    kind: str, tmp_path: pathlib.Path
) -> None:
    """Each call waits for all others."""
    new_pool = pools.ThreadPool(3) if kind == "threads" else pools.ProcessPool(3)
    with new_pool as pool:
        pool.start()
        chain = Chain(pool, functools.partial(calls.gather, str(tmp_path), 3), 3)
        pool.submit(calls.whoami, (), chain)
        for _ in range(4):
            assert not isinstance(chain.ended.get(timeout=calls.WAIT), ft.Failure)


def test_process_slot_that_recycles_leaves_its_submitted_calls_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first slot recycles until the second slot has run the submitted call."""
    recycle = process_pool._Process.recycle
    second_call_ended = threading.Event()
    waits: list[bool] = []

    def recycle_slowly(slot: process_pool._Process) -> None:
        waits.append(second_call_ended.wait(calls.WAIT))
        recycle(slot)

    monkeypatch.setattr(process_pool._Process, "recycle", recycle_slowly)
    with pools.ProcessPool(2, max_calls=1) as pool:
        pool.start()
        chain = Chain(pool, calls.whoami, 1)
        pool.submit(calls.whoami, (), chain)
        pids = {chain.ended.get(timeout=2 * calls.WAIT) for _ in range(2)}
        second_call_ended.set()
    assert all(waits)
    assert len(pids) == len(set(chain.threads)) == 2


def test_cancelled_call_submitted_to_stopped_pool_fails_once() -> None:
    pool, box, cancellation = pools.ThreadPool(1), calls.Box(), Cancellation()
    pool.stop()
    cancellation.cancel()
    pool.submit(calls.double, (1,), box, cancellation=cancellation)
    assert box.done.get(timeout=1).check(exceptions.Cancelled)
    assert box.done.empty()
