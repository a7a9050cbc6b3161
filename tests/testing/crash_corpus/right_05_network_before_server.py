"""Create a network, two servers in it and their entries in the DNS.

The order follows from the names: a server requires the network, an entry requires its server. So
the engine also undoes the work in the opposite order, and no network is deleted while it is in use.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import graph_flow
from wbengine.testing import World

CLOUD = World("cloud")
DNS = World("dns")
WORLDS = [CLOUD, DNS]
INPUTS: dict[str, Any] = {"site": "oslo"}
EXCEPTIONS = {"create a": (TimeoutError,), "create b": (TimeoutError,)}


@task.task(provides="network")
def create_network(site: str) -> str:
    return CLOUD.effect(f"network {site}", idempotency_key=f"network-{site}")


@create_network.revert(failed=True)
def delete_network(site: str) -> None:
    if CLOUD.has("server a") or CLOUD.has("server b"):
        raise RuntimeError(f"the network {site} is in use")
    CLOUD.undo(f"network {site}", missing_ok=True)


@task.task
def create_server(host: str, network: str) -> str:
    return CLOUD.effect(f"server {host}", idempotency_key=f"server-{host}", network=network)


@create_server.revert(failed=True)
def delete_server(host: str) -> None:
    CLOUD.undo(f"server {host}", missing_ok=True)


@task.task
def name_server(host: str, server: str) -> str:
    return DNS.effect(f"entry {host}", idempotency_key=f"entry-{host}", server=server)


@name_server.revert(failed=True)
def remove_name(host: str) -> None:
    DNS.undo(f"entry {host}", missing_ok=True)


def flow() -> graph_flow.Flow:
    graph = graph_flow.Flow("site").add(create_network("create network"))
    for host in ("a", "b"):
        inject, server = {"host": host}, f"server_{host}"
        create = create_server(f"create {host}", inject=inject, provides=server)
        graph.add(create, name_server(f"name {host}", inject=inject, rebind={"server": server}))
    return graph
