"""Signals to flows, for tasks that wait for them."""

from __future__ import annotations

import time
from typing import Any

from wbengine import signals
from wbengine.operations import _backends
from wbengine.persistence import _lease_renewer, base
from wbengine.persistence.backends._sql import caller_transactions

__all__ = ["signal"]


def signal(
    backend: base.Backend,
    uuid: str,
    name: str,
    value: Any = None,
    *,
    strict: bool = False,
    connection: Any = None,
) -> int:
    """Send a signal to a flow, for tasks that wait for it (`task.WaitFor`) now or later.

    An engine may run the flow or not. A flow with a workflow, and one that never ran, accept all
    names, and several signals of each name. `task.WaitFor` uses only the first one.

    :param strict: refuse a signal for which no task waits now, or will wait for certain. The later
        waits of workflows are unknown. This reads all records of the flow.
    :param connection: send the signal in your transaction, as in `engines.submit`.
    :returns: the number of the signal among those of its name: 1, or more for a flow with a
        workflow.
    :raises NotFound: if the flow does not exist, or none of its tasks waits for this signal;
        with `strict`, the message lists the awaited signals.
    :raises InvalidState: if the flow has ended.
    :raises Duplicate: if this signal was sent before, unless the flow has a workflow or never ran.
    :raises NotEncodable: if the value cannot be encoded, or is too long.
    :raises TypeError, ValueError: if the name is not allowed.
    :raises TypeError: if the backend is not one, for example a URL.
    :raises ValueError: if the flow waits for the signal, and its task expects another type.
    """
    _backends.check(backend)
    new_signal = signals.Signal.of(name, value, time.time(), backend.payloads, uuid)
    with caller_transactions.joined_backend(backend, connection, "Sending a signal") as joined:
        return _lease_renewer.send_signal(joined, uuid, new_signal, strict=strict).number
