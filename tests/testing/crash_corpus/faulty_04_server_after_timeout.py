"""Create a database server, wait until it is reachable, and load its schema.

The server exists as soon as the provider has accepted the call, but `create` raises `TimeoutError`
if the answer is late. Then the engine does not call `drop`, because a function given to `revert`
without `failed=True` runs only after executions that succeeded or may have succeeded. The database
belongs to no flow and is billed each month.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

CLOUD = World("cloud")
SCHEMA = World("schema")
WORLDS = [CLOUD, SCHEMA]
INPUTS: dict[str, Any] = {"name": "orders"}
EXCEPTIONS = {"create": (TimeoutError,)}


@task.task(provides="database")
def create(name: str) -> str:
    database = CLOUD.effect(f"database {name}", idempotency_key=f"database-{name}")
    if not CLOUD.has(f"database {name}"):
        raise TimeoutError(f"{name} is not reachable")
    return database


@create.revert
def drop(name: str) -> None:
    CLOUD.undo(f"database {name}", missing_ok=True)


@task.task
def load_schema(name: str, database: str) -> str:
    return SCHEMA.effect(f"tables {name}", idempotency_key=f"tables-{name}", database=database)


@load_schema.revert(failed=True)
def remove_schema(name: str) -> None:
    SCHEMA.undo(f"tables {name}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("database").add(create("create"), load_schema("load schema"))
