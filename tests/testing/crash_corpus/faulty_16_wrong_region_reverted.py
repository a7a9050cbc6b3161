"""Create a cluster in the first region that has enough machines.

`delete_cluster` takes the home region of the customer instead of the region of the attempt. In the
home region both are equal, so all tests pass. If a cluster abroad fails later, the engine deletes
the cluster of the home region once more, which the provider accepts, and the other cluster stays.
"""

from __future__ import annotations

from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow
from wbengine.testing import World

CLOUD = World("cloud")
MONITOR = World("monitor")
WORLDS = [CLOUD, MONITOR]
INPUTS: dict[str, Any] = {"name": "blue", "home_region": "oslo"}


@task.task
def create_cluster(name: str, region: str) -> str:
    return CLOUD.effect(f"cluster {name} {region}", idempotency_key=f"{name}-{region}")


@create_cluster.revert(failed=True)
def delete_cluster(name: str, home_region: str) -> None:
    CLOUD.undo(f"cluster {name} {home_region}", missing_ok=True)


@task.task
def watch(name: str, region: str) -> str:
    return MONITOR.effect(f"watch {name} {region}", idempotency_key=f"watch-{name}-{region}")


@watch.revert(failed=True)
def forget(name: str, region: str) -> None:
    MONITOR.undo(f"watch {name} {region}", missing_ok=True)


def flow() -> linear_flow.Flow:
    regions = retry.ForEach(["bern", "oslo"], name="regions", provides="region")
    members = create_cluster("create cluster"), watch("watch")
    return linear_flow.Flow("cluster", retry=regions).add(*members)
