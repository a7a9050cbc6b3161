"""Create an account for a new employee in all systems, each of them once, and greet the employee.

The systems are sorted after the duplicates were removed, so each process has the same order. The
accounts are created in parallel with `steps.map`. If one system fails, the workflow fails, and
the engine deletes the accounts of all systems that may have created one.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

DIRECTORY = World("directory")
MAIL = World("mail", permanent=True)
WORLDS = [DIRECTORY, MAIL]
INPUTS: dict[str, Any] = {"employee": "ann", "systems": ["wiki", "build", "wiki", "vpn"]}
EXCEPTIONS = {"create_account": (ConnectionError,)}


@task.task
def create_account(system: str, employee: str) -> str:
    key = f"{employee} in {system}"
    return DIRECTORY.effect(key, idempotency_key=key)


@create_account.revert(failed=True)
def delete_account(system: str, employee: str) -> None:
    DIRECTORY.undo(f"{employee} in {system}", missing_ok=True)


@task.task
def greet(employee: str, accounts: list[str]) -> None:
    MAIL.effect(f"welcome {employee}", idempotency_key=f"welcome-{employee}", accounts=accounts)


@task.workflow
def flow(steps: Steps, employee: str, systems: list[str]) -> int:
    accounts = steps.map(create_account, sorted(set(systems)), employee=employee)
    steps.run(greet, employee, accounts)
    return len(accounts)
