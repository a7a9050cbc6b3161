"""Control of one worker by the operations `worker drain` and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.operations import _operation as op

__all__ = ["RESULT", "send"]

RESULT: Final[Mapping[str, Mapping[str, Any]]] = {
    "worker": {"type": "string", "description": "The full name of the worker."}
}


def send(scope: op.Scope, command: str, worker: str) -> dict[str, Any]:
    """Send a command to one worker, without waiting for it.

    :raises NotFound: if the name matches no worker or several, or there is no broker.
    """
    (controlled,) = scope.open_fleet().control(command, [worker])
    return {"worker": controlled.name}
