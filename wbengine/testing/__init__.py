"""Tools for tests of flows and tasks: a broker, workers, engines, a store, faults and a clock.

pytest finds the fixtures `wbe_broker`, `wbe_worker`, `wbe_engine`, `wbe_store` and `wbe_clock`
automatically (see `plugin`). Modules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine._clock import ManualClock
    from wbengine.testing.brokers import Broker
    from wbengine.testing.faults import Fault
    from wbengine.testing.stores import FaultyBackend
    from wbengine.testing.traces import Trace, assert_flow_trace
    from wbengine.testing.workers import worker_in_thread

__all__ = [
    "Broker",
    "Fault",
    "FaultyBackend",
    "ManualClock",
    "Trace",
    "assert_flow_trace",
    "worker_in_thread",
]

__getattr__, __dir__ = _lazily.lazy_attributes(
    __name__,
    {
        ".brokers": ("Broker",),
        ".faults": ("Fault",),
        ".stores": ("FaultyBackend",),
        ".._clock": ("ManualClock",),
        ".traces": ("Trace", "assert_flow_trace"),
        ".workers": ("worker_in_thread",),
    },
)
