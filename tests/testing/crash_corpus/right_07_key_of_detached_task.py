"""Start a training job on a cluster and register its model.

`StartJob` passes `self.request.id` as idempotency key. This is sufficient because the task is
detached: if the process of the engine dies, the next one continues the same execution with the same
id. Nothing retries the task, and each `revert` accepts that the job does not exist.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

CLUSTER = World("cluster")
REGISTRY = World("registry")
WORLDS = [CLUSTER, REGISTRY]
INPUTS: dict[str, Any] = {"model": "prices"}


class StartJob(task.Task):
    default_provides = "job"
    detached = True
    idempotent = True

    def execute(self, model: str) -> str:
        assert self.request is not None
        return CLUSTER.effect(f"training of {model}", idempotency_key=self.request.id)

    def revert(self, model: str) -> None:
        CLUSTER.undo(f"training of {model}", missing_ok=True)


class Register(task.Task):
    idempotent = True

    def execute(self, model: str, job: str) -> str:
        return REGISTRY.effect(f"model {model}", idempotency_key=f"{model}-{job}", job=job)

    def revert(self, model: str) -> None:
        REGISTRY.undo(f"model {model}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("training").add(StartJob("start job"), Register("register"))
