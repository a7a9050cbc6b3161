"""Signals to flows, for tasks that wait for them."""

from __future__ import annotations

import time
from typing import Any

from wbengine import signals
from wbengine.persistence import base, lease_renewer

__all__ = ["signal"]


def signal(backend: base.Backend, uuid: str, name: str, value: Any = None) -> None:
    """Send a signal to a flow, for tasks that wait for it (`task.WaitFor`) now or later.

    An engine may run the flow or not.

    :raises NotFound: if the flow does not exist, or none of its tasks waits for this signal
        (every name is accepted before the flow starts).
    :raises InvalidState: if the flow has ended.
    :raises Duplicate: if this signal was sent before.
    :raises NotEncodable: if the value cannot be encoded, or is too long.
    :raises TypeError, ValueError: if the name is not allowed.
    """
    new_signal = signals.Signal.of(name, value, time.time())
    lease_renewer.send_signal(backend, uuid, new_signal)
