"""Order a label from the provider that is configured, and hand the parcel over.

The workflow reads the provider from the environment of its process. If a deployment changes the
variable, or another host without it continues the flow, the function calls the step of the other
provider: `NonDeterministicWorkflow`, and the label that was paid is neither used nor cancelled.
"""

from __future__ import annotations

import os
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

EXPRESS = World("express")
POST = World("post")
DEPOT = World("depot")
WORLDS = [EXPRESS, POST, DEPOT]
INPUTS: dict[str, Any] = {"parcel": "P-9"}


@task.task
def order_express_label(parcel: str) -> str:
    return EXPRESS.effect(f"label {parcel}", idempotency_key=f"label-{parcel}")


@order_express_label.revert(failed=True)
def cancel_express_label(parcel: str) -> None:
    EXPRESS.undo(f"label {parcel}", missing_ok=True)


@task.task
def order_post_label(parcel: str) -> str:
    return POST.effect(f"label {parcel}", idempotency_key=f"label-{parcel}")


@order_post_label.revert(failed=True)
def cancel_post_label(parcel: str) -> None:
    POST.undo(f"label {parcel}", missing_ok=True)


@task.task
def hand_over(parcel: str, label: str) -> str:
    return DEPOT.effect(f"parcel {parcel}", idempotency_key=f"parcel-{parcel}", label=label)


@hand_over.revert(failed=True)
def fetch_back(parcel: str) -> None:
    DEPOT.undo(f"parcel {parcel}", missing_ok=True)


@task.workflow
def flow(steps: Steps, parcel: str) -> str:
    is_express = os.environ.get("PARCEL_PROVIDER") == "express"
    label = steps.run(order_express_label if is_express else order_post_label, parcel)
    return steps.run(hand_over, parcel, label)
