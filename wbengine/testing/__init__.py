"""Tools for tests of flows and tasks: a broker, workers, engines, a store, faults, a clock, worlds.

pytest finds the fixtures `wbe_broker`, `wbe_worker`, `wbe_engine`, `wbe_store` and `wbe_clock`
automatically (see `plugin`). Modules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine._concurrency.manual_clock import ManualClock
    from wbengine.testing._brokers import Broker
    from wbengine.testing._crashing.exploring import crash_everywhere
    from wbengine.testing._crashing.outcome import FinishedRun
    from wbengine.testing._crashing.report import Finding, Report
    from wbengine.testing._faults import Fault
    from wbengine.testing._replays import Replayed, replay
    from wbengine.testing._stores import FaultyBackend
    from wbengine.testing._submitted import run_submitted
    from wbengine.testing._traces import Trace, assert_flow_trace
    from wbengine.testing._workers import worker_in_thread
    from wbengine.testing._worlds.folder import FolderWorld
    from wbengine.testing._worlds.http import HttpWorld
    from wbengine.testing._worlds.key_value import KeyValueWorld
    from wbengine.testing._worlds.queue import QueueWorld
    from wbengine.testing._worlds.world import World

__all__ = [
    "Broker",
    "Fault",
    "FaultyBackend",
    "Finding",
    "FinishedRun",
    "FolderWorld",
    "HttpWorld",
    "KeyValueWorld",
    "ManualClock",
    "QueueWorld",
    "Replayed",
    "Report",
    "Trace",
    "World",
    "assert_flow_trace",
    "crash_everywhere",
    "replay",
    "run_submitted",
    "worker_in_thread",
]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._brokers": ("Broker",),
        "._crashing.exploring": ("crash_everywhere",),
        "._crashing.report": ("Finding", "Report"),
        "._crashing.simulated_run": ("FinishedRun",),
        "._faults": ("Fault",),
        "._replays": ("Replayed", "replay"),
        "._stores": ("FaultyBackend",),
        ".._concurrency.manual_clock": ("ManualClock",),
        "._submitted": ("run_submitted",),
        "._traces": ("Trace", "assert_flow_trace"),
        "._workers": ("worker_in_thread",),
        "._worlds.folder": ("FolderWorld",),
        "._worlds.http": ("HttpWorld",),
        "._worlds.key_value": ("KeyValueWorld",),
        "._worlds.queue": ("QueueWorld",),
        "._worlds.world": ("World",),
    },
)
