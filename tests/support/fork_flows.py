"""Flows to fork, whose tasks record their effects in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.support import conducted
from tests.support.waiting import until
from wbengine import engines, retry, steps, task
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.patterns import graph_flow, linear_flow
from wbengine.persistence import base, models
from wbengine.persistence.backends import _sql

EFFECTS: list[str] = []
#: Names of the tasks and steps that fail.
FAILING: set[str] = set()


class Step(task.Task):
    """A task that records its execution and its reversion."""

    def execute(self, **values: Any) -> str:
        return _execute(self.name)

    def revert(self, **_: Any) -> None:
        _revert(self.name)


def _execute(name: str) -> str:
    EFFECTS.append(name)
    if name in FAILING:
        raise ValueError(f"{name} fails")
    return f"{name} {EFFECTS.count(name)}"


def _revert(name: str) -> None:
    EFFECTS.append(f"undo {name}")
    if f"undo {name}" in FAILING:
        raise ValueError(f"undo {name} fails")


def diamond() -> graph_flow.Flow:
    """A -> (B, C) -> D, and E beside them."""
    flow = graph_flow.Flow("diamond")
    a = Step("A", provides="a")
    b = Step("B", provides="b", requires=("a",))
    c = Step("C", provides="c", requires=("a", "card"))
    d = Step("D", provides="d", requires=("b", "c"))
    return flow.add(a, b, c, d, Step("E", provides="e", requires=("order",)))


def retried() -> linear_flow.Flow:
    """A, then B and C under a retry controller, then D."""
    inner = linear_flow.Flow("inner", retry.Times(2, name="again")).add(Step("B"), Step("C"))
    return linear_flow.Flow("retried").add(Step("A"), inner, Step("D"))


def ignoring() -> graph_flow.Flow:
    """A -> B -> C, where B is ignored by a decider, and D follows A."""
    flow = graph_flow.Flow("ignoring")
    a, b, c, d = Step("A"), Step("B"), Step("C"), Step("D")
    flow.add(a, b, c, d)
    flow.link(a, b, decider=lambda history: False)
    flow.link(b, c)
    return flow.link(a, d)


def wide(chains: int = 1000) -> graph_flow.Flow:
    """Chains of ten tasks."""
    flow = graph_flow.Flow("wide")
    for chain in range(chains):
        inner = linear_flow.Flow(f"chain {chain}")
        flow.add(inner.add(*(Quiet(f"{chain}.{number}") for number in range(10))))
    return flow


class Quiet(task.Task):
    def execute(self) -> int:
        return 1

    def revert(self, **_: Any) -> None:
        pass


@task.task(name="charge")
def charge(amount: int) -> str:
    return f"{_execute('charge')} of {amount}"


@charge.revert
def _undo_charge(amount: int, result: Any) -> None:
    _revert("charge")


@task.task(name="pack")
def pack(paid: str) -> str:
    return _execute("pack")


@pack.revert
def _undo_pack(paid: str, result: Any) -> None:
    _revert("pack")


@task.task(name="ship")
def ship(address: str) -> str:
    return f"{_execute('ship')} to {address}"


@ship.revert
def _undo_ship(address: str, result: Any) -> None:
    _revert("ship")


@task.workflow
def order(run: steps.Steps, amount: int, address: str) -> str:
    paid = run.run(charge, amount)
    run.run(pack, paid)
    return run.run(ship, address)


@task.workflow
def approved(run: steps.Steps) -> list[Any]:
    first = run.wait_for("approval")
    run.run(pack, str(first))
    second = run.wait_for("approval")
    run.run(ship, str(second))
    return [first, second]


@task.workflow
def versioned(run: steps.Steps, newest: int) -> list[int]:
    """Decide a version before each step."""
    first = run.version("first", newest)
    run.run(charge, 1)
    second = run.version("second", newest)
    return [first, second, len(run.run(ship, "home"))]


@task.task
def pay(key: str, at: str) -> str:
    _execute(key)
    return at


@pay.revert
def refund(key: str, at: str) -> None:
    _revert(key)


@task.workflow
def keyed(run: steps.Steps) -> list[str]:
    """Pass a new key and the time to each of three steps."""
    return [run.run(pay, str(run.uuid4()), run.now().isoformat()) for _ in range(3)]


@task.workflow
def looped(run: steps.Steps) -> int:
    for number in range(3):
        run.run(charge, number)
    return 3


@task.workflow
def continued(run: steps.Steps, month: int = 1) -> list[Any]:
    """Charge for three months, each in an attempt of its own that waits for a signal; then ship."""
    charged = run.run(charge, month)
    approval = run.wait_for("approval")
    if month < 3:
        run.continue_as_new(month=month + 1)
    return [charged, approval, run.run(ship, "home")]


@task.workflow
def scoped(run: steps.Steps) -> str:
    """Charge, then pack in a scope that is reverted, then ship."""
    run.run(charge, 1)
    with contextlib.suppress(ValueError), run.scope():
        run.run(pack, "in a box")
        raise ValueError("the box is too small")
    return run.run(ship, "home")


@task.workflow
async def gathered(run: steps.AsyncSteps) -> list[str]:
    """Pack and ship at the same time, then charge."""
    both = await asyncio.gather(run.run(pack, "one"), run.run(ship, "home"))
    return [*both, await run.run(charge, 1)]


@task.workflow
async def overtaken(run: steps.AsyncSteps) -> str:
    """The first step completes after the second one. Then ship."""
    await asyncio.gather(run.sleep(0.1), run.run(pack, "one"))
    return await run.run(ship, "home")


@task.workflow
def checked(run: steps.Steps) -> str:
    """Pack, then ship, unless the function itself fails between them."""
    run.run(pack, "one")
    if "checked" in FAILING:
        raise ValueError("the parcel is too heavy")
    return run.run(ship, "home")


class Noted(task.Task):
    """A task that records its execution and reversion in a file."""

    def execute(self, folder: str) -> None:
        self._note(folder, self.name)
        if self.name == "C" and not Path(folder, "fixed").exists():
            raise ValueError("C fails")

    def revert(self, folder: str, **_: Any) -> None:
        self._note(folder, f"undo {self.name}")

    def _note(self, folder: str, text: str) -> None:
        with Path(folder, "effects").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def noted() -> linear_flow.Flow:
    """A, B and C, which fails until the file `fixed` exists."""
    return linear_flow.Flow("noted").add(Noted("A"), Noted("B"), Noted("C"))


def keeps_jobs(store: base.Backend) -> bool:
    """Return whether the jobs of the flows are in the store."""
    return isinstance(store, _sql.SQLBackend)


@contextlib.contextmanager
def board_of(store: base.Backend) -> Iterator[jobs.JobBoard]:
    """A board in the store, or for a store that is no database, in memory."""
    kind = "sql" if keeps_jobs(store) else "memory"
    with boards.backend("forks", kind, persistence=store) as board:
        yield board


def submit(
    store: base.Backend,
    board: jobs.JobBoard,
    flow: Any,
    arguments: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> str:
    return engines.submit(flow, None, arguments, backend=store, board=board, inputs=inputs).id


def run(store: base.Backend, board: jobs.JobBoard, *uuids: str, **options: Any) -> None:
    """Run conductors until the job board has no job."""
    for uuid in uuids:
        with contextlib.closing(store.get_connection()) as connection:
            flow = connection.get_flow_details(uuid, lazy=True)
        if not keeps_jobs(store):
            # `ConductorService` posts missing jobs of separate boards.
            book = models.LogBook(flow.name)
            board.post(flow.name, book, {"flow_uuid": uuid})
    options = {"never_resolve": True, **options}
    conductor = conductors.fetch(
        "nonblocking", "c", board, persistence=store, engine_options=options
    )
    with conducted.running(conductor):
        until(lambda: board.job_count == 0)


def flow_of(store: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def expire_claims(store: base.Backend) -> None:
    """Let the claims of killed conductors expire."""
    assert isinstance(store, _sql.SQLBackend)
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE wbe_jobs SET owner_until = 1 WHERE owner <> ''"))
