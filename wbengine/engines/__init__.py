"""Engines: what runs flows.

The public names are found on first use: a worker process imports modules from below this package,
and must not load storage and core with them.
"""

from __future__ import annotations

# The first import of these modules, also by libraries such as futurist, fails after the end of the
# main thread, which flows may outlive.
import concurrent.futures.process
import concurrent.futures.thread  # noqa: F401
from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.engines._compilation import Compilation
    from wbengine.engines._differences import Difference
    from wbengine.engines._engine_choice import defaults
    from wbengine.engines._loading import (
        arun,
        flow_from_detail,
        load,
        load_from_detail,
        load_from_factory,
        read_flow_detail,
        run,
        save_factory_details,
    )
    from wbengine.engines._submission import FlowHandle, asubmit, handle, submit, submit_many

__all__ = [
    "load",
    "run",
    "arun",
    "defaults",
    "flow_from_detail",
    "load_from_detail",
    "load_from_factory",
    "read_flow_detail",
    "save_factory_details",
    "Compilation",
    "Difference",
    "FlowHandle",
    "asubmit",
    "handle",
    "submit",
    "submit_many",
]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._compilation": ("Compilation",),
        "._differences": ("Difference",),
        "._engine_choice": ("defaults",),
        "._loading": (
            "arun",
            "flow_from_detail",
            "load",
            "load_from_detail",
            "load_from_factory",
            "read_flow_detail",
            "run",
            "save_factory_details",
        ),
        "._submission": ("FlowHandle", "asubmit", "handle", "submit", "submit_many"),
    },
)
