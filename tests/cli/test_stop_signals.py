"""Commands end on signals, wherever their main thread is. Process 1 forwards them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import fresh, python
from tests.support.waiting import until
from tests.unit import pool_calls
from wbengine import engines, pools
from wbengine._cli import stop_signals, worker_command
from wbengine._concurrency import event_loop
from wbengine.engines.worker_based._messages import worker_life
from wbengine.patterns import linear_flow

_BEGIN = """
import os, signal, sys, threading, time
from wbengine._cli import stop_signals

told = threading.Event()

def first():
    print("first", flush=True)
    told.set()

def second():
    print("second", flush=True)
    os._exit(0)
"""

#: The system may deliver a signal to any thread; the main thread waits and is not interrupted.
_ANOTHER_THREAD = (
    _BEGIN
    + """
def kill():
    time.sleep(0.1)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with stop_signals.StopSignals(first, second).installed():
    threading.Thread(target=kill).start()
    told.wait()
print("ended")
"""
)

_TWICE = (
    _BEGIN
    + """
with stop_signals.StopSignals(first, second).installed():
    os.kill(os.getpid(), signal.SIGTERM)
    told.wait()
    time.sleep(2 * stop_signals._SAME_SIGNAL_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
"""
)

#: The second SIGHUP was handled when the program handles SIGUSR1.
_HANG_UP = (
    _BEGIN
    + """
handled = threading.Event()
with stop_signals.StopSignals(first, second, lambda: handled.set() or ()).installed():
    os.kill(os.getpid(), signal.SIGHUP)
    told.wait()
    time.sleep(2 * stop_signals._SAME_SIGNAL_SECONDS)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGUSR1)
    handled.wait()
    print("continues", flush=True)
    os.kill(os.getpid(), signal.SIGQUIT)
    threading.Event().wait()
"""
)

#: Python resets handlers before it deletes the attributes of `sys`.
_LATE_HANG_UP = (
    _BEGIN
    + """
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGHUP):
        kill(pid, number)

sys.late = Late()
with stop_signals.StopSignals(first, second).installed():
    os.kill(os.getpid(), signal.SIGHUP)
    told.wait()
"""
)

_FORKED = (
    _BEGIN
    + """
with stop_signals.StopSignals(first, second).installed():
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, lambda *told: os._exit(7))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(0.2)
print("ended", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1))
"""
)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_ANOTHER_THREAD, "first\nended\n"),
        (_TWICE, "first\nsecond\n"),
        (_FORKED, "ended True -1\n"),
        (f"import logging; logging.disable()\n{_HANG_UP}", "first\ncontinues\nsecond\n"),
        (_LATE_HANG_UP, "first\n"),
    ],
    ids=["another thread", "twice", "forked", "hang-up", "late hang-up"],
)
def test_signals_are_handled_whatever_the_main_thread_does(program: str, message: str) -> None:
    completed = fresh.run(program)
    assert (completed.stdout, completed.stderr) == (message, "")


def test_fork_of_a_task_does_not_inherit_the_handlers() -> None:
    signals = stop_signals.StopSignals(lambda: None, lambda: None)
    with signals.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the child does not use
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,))
        child.start()
        child.terminate()
        child.join()
        assert not signals.received
    assert child.exitcode == -signal.SIGTERM


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "own"])
def test_other_signals_keep_handlers_of_user_code(handler: Any) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with stop_signals.StopSignals(lambda: None, lambda: None).installed():
            assert signal.getsignal(signal.SIGHUP) == handler
            assert signal.getsignal(signal.SIGQUIT) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_with_a_handler_of_user_code_does_not_stop_the_command() -> None:
    stopped, state_logged, handled = threading.Event(), threading.Event(), threading.Event()
    before = signal.signal(signal.SIGHUP, lambda *_: handled.set())

    def work() -> list[Any]:
        state_logged.set()
        return []

    signals = stop_signals.StopSignals(stopped.set, stopped.set, work)
    try:
        with signals.installed():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)  # It is handled after the other one.
            assert handled.wait(10) and state_logged.wait(10)
            assert not signals.received and not stopped.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("is_back", "gave_up", "is_solo", "code"),
    [
        (True, True, False, None),
        (True, False, True, None),
        (False, True, False, 1),
        (False, False, True, 0),
    ],
)
def test_ended_worker_ends_its_process_only_if_the_main_thread_is_stuck(
    monkeypatch: pytest.MonkeyPatch, is_back: bool, gave_up: bool, is_solo: bool, code: int | None
) -> None:
    """Otherwise, the main thread still exports the last spans."""
    codes: list[int] = []
    monkeypatch.setattr(stop_signals, "exit_at_once", lambda code=1: codes.append(code))
    monkeypatch.setattr(worker_command, "_EXIT_WAIT_SECONDS", 0.01)
    worker = SimpleNamespace(is_solo=is_solo, failed=threading.Event())
    worker.ended, worker.gave_up, back = (threading.Event() for _ in range(3))
    for event, is_set in ((worker.ended, True), (worker.gave_up, gave_up), (back, is_back)):
        if is_set:
            event.set()
    worker_command._end_process(worker, back)
    assert codes == ([] if code is None else [code])


FLOW = linear_flow.Flow("idle")


async def wait_in_coroutine(gate: threading.Event) -> None:
    while not gate.is_set():
        await asyncio.sleep(0.01)


def wait_in_thread(gate: threading.Event, emit: object) -> None:
    gate.wait()


def test_sigusr1_logs_work_and_stacks(caplog: pytest.LogCaptureFixture) -> None:
    gate, loop = threading.Event(), event_loop.EventLoop()
    with pools.ThreadPool(1) as pool, pools.ProcessPool(1) as processes:
        box = pool_calls.Box()
        loop.submit(wait_in_coroutine, (gate,), box, name="waiting")
        pool.submit(wait_in_thread, (gate,), box)
        call = processes.submit(pool_calls.asleep, (), box, box.event)
        child = box.begun()
        work = [worker_life.Life(current=(("id", "x"),), since=(0.0,)), engines.load(FLOW)]
        signals = stop_signals.StopSignals(lambda: None, lambda: None, lambda: work)
        with signals.installed():
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: "in progress: flow 'idle'" in caplog.text)
            until(lambda: "time.sleep(3600)" in caplog.text)
            assert not signals.received
        gate.set()
        call.cancel(0)
        loop.stop()
    assert "in progress: task 'x', request id, for " in caplog.text
    assert "gate.wait()" in caplog.text and f"thread MainThread of process {child}:" in caplog.text
    assert "coroutine of task 'waiting':" in caplog.text
    assert "await asyncio.sleep(0.01)" in caplog.text


#: A subreaper inherits orphans as process 1 of a container does.
PROGRAM = """
import ctypes, os, signal, sys, time
from wbengine._cli import reaper

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
reaper.continue_in_child()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
reader, writer = os.pipe()
parent = os.fork()
if not parent:
    orphan = os.fork()
    if orphan:
        os.write(writer, b"%d" % orphan)
    os._exit(0)
assert os.waitpid(parent, 0) == (parent, 0)  # the status of a child is not lost
orphan = os.read(reader, 20).decode()
while os.path.exists("/proc/" + orphan):
    time.sleep(0.001)
os.kill(*END)
signal.pause()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.getppid(), signal.SIGUSR1", 7), ("os.getpid(), signal.SIGKILL", 137)],
    ids=["forwarded signal", "killed"],
)
def test_first_process_reaps_orphans_and_ends_like_its_child(end: str, code: int) -> None:
    program = PROGRAM.replace("*END", end)
    completed = python.run(["-c", program], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (code, "")
