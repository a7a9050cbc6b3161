"""Signals to flows: for the tasks that wait for them."""

from __future__ import annotations

import time
from typing import Any

from wbengine import signals
from wbengine.persistence import base, lease_renewer

__all__ = ["signal"]


def signal(backend: base.Backend, uuid: str, name: str, value: Any = None) -> None:
    """Give a flow a signal, for the tasks that wait for it (`task.WaitFor`), now or later.

    Whether somebody runs the flow or not.

    :raises NotFound: there is no such flow, or none of its tasks waits for such a signal (before
        it has begun any name is taken).
    :raises InvalidState: it has ended.
    :raises Duplicate: it was given this signal before.
    :raises NotEncodable: the value cannot be sent, or is too long.
    :raises TypeError, ValueError: the name can be none.
    """
    made = signals.Signal.of(name, value, time.time())
    lease_renewer.send_signal(backend, uuid, made)
