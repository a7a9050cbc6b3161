"""Commands end on signals, wherever their main thread is."""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings

import pytest

from tests.support import fresh
from wbengine.cli import stop_signals

_BEGIN = """
import os, signal, sys, threading, time
from wbengine.cli import stop_signals

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
    ],
    ids=["another thread", "twice", "forked"],
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
