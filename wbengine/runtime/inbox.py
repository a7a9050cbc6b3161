"""What reaches the run loop from other threads."""

from __future__ import annotations

import queue

from wbengine import invocation as calls
from wbengine.runtime import lifecycle as lifecycle_module

__all__ = ["Arrival", "Inbox", "Withdrawn"]


class Withdrawn(list[lifecycle_module.Call]):
    """Calls that were given back before they started."""


#: An outcome, something taken back, or (None) only that there is something to write or a wish to
#: stop.
Arrival = tuple[lifecycle_module.Call, calls.Outcome] | Withdrawn | None

Inbox = queue.SimpleQueue[Arrival]
