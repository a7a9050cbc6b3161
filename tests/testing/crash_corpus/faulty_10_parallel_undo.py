"""Create a network, a server in it and a volume, then register the server.

The server needs the network, but the flow only contains both, without an order between them. It
succeeds because the engine happens to start the network first. After a failure, tasks without an
order are reverted at the same time or in any order: the provider refuses to delete a network with
a server, and the network stays.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.testing import World

CLOUD = World("cloud")
REGISTRY = World("registry")
WORLDS = [CLOUD, REGISTRY]
INPUTS: dict[str, Any] = {"site": "oslo"}


@task.task
def create_network(site: str) -> str:
    return CLOUD.effect(f"network {site}", idempotency_key=f"network-{site}")


@create_network.revert(failed=True)
def delete_network(site: str) -> None:
    if CLOUD.has(f"server {site}"):
        raise RuntimeError(f"the network {site} is in use")
    CLOUD.undo(f"network {site}", missing_ok=True)


@task.task
def create_server(site: str) -> str:
    return CLOUD.effect(f"server {site}", idempotency_key=f"server-{site}")


@create_server.revert(failed=True)
def delete_server(site: str) -> None:
    CLOUD.undo(f"server {site}", missing_ok=True)


@task.task
def register(site: str) -> str:
    return REGISTRY.effect(f"entry {site}", idempotency_key=f"entry-{site}")


@register.revert(failed=True)
def unregister(site: str) -> None:
    REGISTRY.undo(f"entry {site}", missing_ok=True)


def flow() -> linear_flow.Flow:
    parts = unordered_flow.Flow("parts").add(create_network("network"), create_server("server"))
    return linear_flow.Flow("site").add(parts, register("register"))
