"""Create a sandbox, wait for the result of a test in it, and store this result.

The workflow deletes the sandbox in a `finally` block. This block runs at the end of each run, also
if the flow is only parked or suspended while it waits: then the sandbox is deleted during the test.
If the process is killed or the flow is cancelled afterwards, the block may not run at all, and the
sandbox stays.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

CLOUD = World("cloud")
RESULTS = World("results")
WORLDS = [CLOUD, RESULTS]
INPUTS: dict[str, Any] = {"commit": "c0ffee"}
SIGNALS = {"tested": "passed"}


@task.task
def create_sandbox(commit: str) -> str:
    return CLOUD.effect(f"sandbox {commit}", idempotency_key=f"sandbox-{commit}")


@task.task
def store_result(commit: str, result: str) -> str:
    if not CLOUD.has(f"sandbox {commit}"):
        raise LookupError("the sandbox with the logs of the test does not exist")
    return RESULTS.effect(f"result {commit}", idempotency_key=f"result-{commit}", result=result)


@store_result.revert(failed=True)
def delete_result(commit: str) -> None:
    RESULTS.undo(f"result {commit}", missing_ok=True)


@task.workflow
def flow(steps: Steps, commit: str) -> str:
    try:
        steps.run(create_sandbox, commit)
        result = steps.wait_for("tested", timeout=3600)
        steps.run(store_result, commit, result)
        return str(result)
    finally:
        CLOUD.undo(f"sandbox {commit}", missing_ok=True)
