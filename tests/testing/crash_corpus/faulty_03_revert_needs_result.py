"""Create a virtual server and its name in the DNS.

The `revert` of `CreateServer` takes the name of the server from the result of `execute`. If the
call fails after the provider has created the server, or the worker is lost, `result` is a failure,
and `revert` raises `TypeError`. The flow ends in FAILURE, and the server runs and costs money until
a person finds it.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

CLOUD = World("cloud")
DNS = World("dns")
WORLDS = [CLOUD, DNS]
INPUTS: dict[str, Any] = {"host": "web1"}


class CreateServer(task.Task):
    default_provides = "server"

    def execute(self, host: str) -> dict[str, str]:
        key = f"server {host}"
        return {"key": key, "id": CLOUD.effect(key, idempotency_key=f"create-{host}")}

    def revert(self, result: Any) -> None:
        CLOUD.undo(result["key"], missing_ok=True)


class CreateRecord(task.Task):
    def execute(self, host: str, server: dict[str, str]) -> str:
        return DNS.effect(f"record {host}", idempotency_key=f"record-{host}", target=server["id"])

    def revert(self, host: str) -> None:
        DNS.undo(f"record {host}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("server").add(CreateServer("create server"), CreateRecord("record"))
