"""Flows that run after the main thread of their program has ended, or in its exit handlers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import fresh

#: Each mode runs in a fork, in which nothing is imported that only a run imports.
PROGRAM = """
import atexit, os, sys, threading, traceback
from tests.support import async_tasks, sample_tasks, workflows
from wbengine import engines, exceptions
from wbengine.patterns import unordered_flow

def run(**options):
    flow = unordered_flow.Flow("flow").add(
        sample_tasks.Add(inject={"x": 1, "y": 2}), async_tasks.greet("greet", inject={"name": "y"})
    )
    return engines.run(flow, **options)

def serial():
    assert run() == {"sum": 3, "greeting": "hello y"}

def processes():
    assert run(engine="parallel", executor="processes")["sum"] == 3

def threads_and_store():
    assert run(engine="parallel", backend=URL)["sum"] == 3
    assert engines.run(workflows.checkout, inputs={"total": 5}, backend=URL)

def brokers():
    for url in "redis://127.0.0.1:1", "amqp://127.0.0.1:1//":
        try:
            run(engine="workers", url=url)
        except exceptions.TransportFailure:
            pass

def checked():
    try:
        globals()[mode]()
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def late():
    threading.main_thread().join()
    checked()

URL = "sqlite:///flows.db"
for mode in sys.argv[1:]:
    mode, _, place = mode.partition(" ")
    if not os.fork():
        break
    assert not os.wait()[1], mode
else:
    print("complete")
    os._exit(0)
atexit.register(checked) if place else threading.Thread(target=late).start()
"""

MODES = "serial", "serial atexit", "processes", "threads_and_store", "brokers"


@pytest.mark.slow
def test_flows_run_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    completed = fresh.run(
        PROGRAM, *MODES, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, code=None
    )
    assert completed.stdout == "complete\n", completed.stderr
