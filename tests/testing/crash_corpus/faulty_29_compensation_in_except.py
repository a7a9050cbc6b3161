"""Create a bucket, a user for it and the credentials of the user.

The workflow undoes its work itself, with steps in `except Exception`, and its tasks have no
`revert`. A cancellation or a passed deadline ends the function with an exception that is no
`Exception`, and a flow that is reverted does not call the function at all. Then nothing is deleted:
the bucket is billed, and its credentials remain valid.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

CLOUD = World("cloud")
WORLDS = [CLOUD]
INPUTS: dict[str, Any] = {"name": "reports"}
PARTS = ("bucket", "user", "credentials")


@task.task
def create(part: str, name: str) -> str:
    return CLOUD.effect(f"{part} {name}", idempotency_key=f"{part}-{name}")


@task.task
def delete(part: str, name: str) -> None:
    CLOUD.undo(f"{part} {name}", missing_ok=True)


@task.workflow
def flow(steps: Steps, name: str) -> list[str]:
    try:
        return [steps.run(create, part, name) for part in PARTS]
    except Exception:
        for part in reversed(PARTS):
            steps.run(delete, part, name)
        raise
