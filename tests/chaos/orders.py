"""Complete orders that one command reverts, while conductors, workers and databases are killed.

Half of the orders are graphs, half are workflows. Their steps write rows into a database in a
transaction, so each effect happens exactly once, also if a process is killed. `wbengine flow
revert` selects four of five orders by their tag. The checks compare the rows with the promises: all
effects of these orders are undone once and in reverse order, and no effect of the others is undone.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.chaos import audit
from wbengine import engines, retry, states, task
from wbengine._transactions import registered
from wbengine.jobs import base as jobs
from wbengine.patterns import graph_flow, linear_flow
from wbengine.persistence import base as persistence
from wbengine.steps import Steps

#: Name of the database with the effects.
BANK = "bank"
#: Value of the tag `release` of the orders to revert.
RELEASE = "42"
#: Number of parcels of an order.
PARCELS = 3
DO, UNDO = "do", "undo"
#: Effects of an order in an order of the workflow. Those of parcels have no order among them.
PACKING = tuple(f"pack{number}" for number in range(PARCELS))
EFFECTS = ("reserve", *PACKING, "charge", "book")
#: Pairs of effects of which the first is complete before the second begins.
IN_GRAPHS = (*(("reserve", effect) for effect in EFFECTS[1:]), ("charge", "book"))
IN_WORKFLOWS = (
    *IN_GRAPHS,
    *itertools.product(PACKING, ("charge", "book")),
)


def is_workflow(order: str) -> bool:
    return int(order.removeprefix("flow")) % 2 == 1


def is_reverted(order: str) -> bool:
    """Return whether the command selects this order."""
    return int(order.removeprefix("flow")) % 5 != 4


class Effect(task.Task):
    """Adds a row, and another one when it is reverted."""

    transaction = BANK

    def execute(self, connection: sa.Connection, effect: str, order: str) -> str:
        self._add(connection, order, DO, effect)
        return f"{effect} of {order}"

    def revert(self, connection: sa.Connection, effect: str, order: str, result: str) -> None:
        if result != f"{effect} of {order}":
            raise ValueError(f"{effect} of {order} is reverted with the result {result!r:.80}")
        self._add(connection, order, UNDO, effect)

    def _add(self, connection: sa.Connection, order: str, action: str, effect: str) -> None:
        request = self.request
        assert request is not None
        name = f"{order}.{effect}.{action}"
        audit.note(audit.STARTED, name, request.id, request.epoch, request.attempt)
        row = {"order": order, "action": action, "effect": effect}
        connection.execute(
            sa.text(
                'INSERT INTO effects ("order", action, effect) VALUES (:order, :action, :effect)'
            ),
            row,
        )
        audit.note(audit.ENDED, name, request.id, request.epoch, request.attempt)


@task.task
def send_letter(order: str) -> None:
    """Has no `revert`, and therefore no effect for the reversion."""


def graph() -> graph_flow.Flow:
    reserve = Effect("reserve", inject={"effect": "reserve"})
    packing = task.Map(Effect("pack"), over="parcels", item="effect")
    paying = linear_flow.Flow("paying", retry=retry.Times(2)).add(
        Effect("charge", inject={"effect": "charge"}), Effect("book", inject={"effect": "book"})
    )
    letter = send_letter()
    flow = graph_flow.Flow("graph").add(reserve, packing, paying, letter)
    for part in (packing, paying):
        flow.link(reserve, part)
        flow.link(part, letter)
    return flow


@task.workflow
def program(steps: Steps, order: str) -> str:
    steps.run(Effect, order=order, effect="reserve")
    steps.map(Effect, PACKING, order=order)
    steps.sleep(0)
    with steps.scope():
        steps.run(Effect, order=order, effect="charge")
        steps.run(Effect, order=order, effect="book")
    steps.run(send_letter, order)
    return order


class Bank:
    """The database with the effects of orders."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        columns = 'number INTEGER PRIMARY KEY, "order" TEXT, action TEXT, effect TEXT'
        with self._engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE effects ({columns})"))

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which processes find the database."""
        return {registered.VARIABLE: json.dumps({BANK: self.url})}

    def rows(self) -> list[Row]:
        """Return all effects in their order."""
        statement = 'SELECT "order", action, effect FROM effects ORDER BY number'
        with self._engine.connect() as connection:
            return [Row(*each) for each in connection.execute(sa.text(statement))]


class Row(NamedTuple):
    order: str
    action: str
    effect: str


def submit(flows: int, store: persistence.Backend, board: jobs.JobBoard) -> dict[str, str]:
    """Submit the orders and return their names by uuid."""
    uuids = {}
    names = [f"flow{number}" for number in range(flows)]
    for key, group in itertools.groupby(sorted(names, key=_kind), key=_kind):
        of_workflow, is_selected = key
        orders = list(group)
        inputs: list[dict[str, Any]] = [{"order": order} for order in orders]
        if not of_workflow:
            inputs = [{**each, "parcels": list(PACKING)} for each in inputs]
        handles = engines.submit_many(
            program if of_workflow else graph,
            inputs,
            backend=store,
            board=board,
            tags={"release": RELEASE if is_selected else "41"},
        )
        uuids.update({handle.id: order for handle, order in zip(handles, orders, strict=True)})
    return uuids


def _kind(order: str) -> tuple[bool, bool]:
    return is_workflow(order), is_reverted(order)


#: The options that select the orders to revert.
SELECTION = ("--tag", f"release={RELEASE}", "--state", "SUCCESS")


def judge(
    uuids: Mapping[str, str], rows: Iterable[Row], connection: persistence.Connection
) -> Iterator[str]:
    """Yield the problems: states, and effects that are missing, repeated or in a wrong order."""
    rows_by_order = defaultdict[str, list[Row]](list)
    for row in rows:
        rows_by_order[row.order].append(row)
    for uuid, order in uuids.items():
        detail = connection.get_flow_details(uuid)
        wanted = [states.SUCCESS, states.REVERTED] if is_reverted(order) else [states.SUCCESS]
        ends = [each.state for each in detail.history if each.state in states.FLOW_ENDED]
        if ends != wanted or detail.state != wanted[-1]:
            yield f"{order} ({uuid}) is in {detail.state}, and ended in {ends}, not {wanted}"
        yield from judge_effects(order, rows_by_order[order])


def judge_effects(order: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield effects of an order that are missing, repeated or in a wrong order."""
    counts = Counter((row.action, row.effect) for row in rows)
    for effect in EFFECTS:
        for action, wanted in ((DO, 1), (UNDO, int(is_reverted(order)))):
            if (count := counts[action, effect]) != wanted:
                yield f"{order}: {action} {effect} happened {count} times, not {wanted}"
    places = {(row.action, row.effect): place for place, row in enumerate(rows)}
    if places.keys() != counts.keys() or not is_reverted(order):
        return
    last_done = max((place for (action, _), place in places.items() if action == DO), default=0)
    for (action, effect), place in places.items():
        if action == UNDO and place < last_done:
            yield f"{order}: {effect} was undone before the order was complete"
    for earlier, later in IN_WORKFLOWS if is_workflow(order) else IN_GRAPHS:
        if places.get((UNDO, earlier), math.inf) < places.get((UNDO, later), -1):
            yield f"{order}: {earlier} was undone before {later}"


def effects_to_undo(flows: int) -> int:
    """Return how many effects the command has to undo."""
    return len(EFFECTS) * sum(is_reverted(f"flow{number}") for number in range(flows))


def count_reversions(names: Iterable[str], rows: Iterable[Row]) -> dict[str, int]:
    """Count the effects of orders that were undone, missed, and undone twice."""
    counts = Counter((row.order, row.effect) for row in rows if row.action == UNDO)
    selected = [(order, effect) for order in names if is_reverted(order) for effect in EFFECTS]
    return {
        "undone": sum(counts.values()),
        "missed": sum(each not in counts for each in selected),
        "twice": sum(count > 1 for count in counts.values()),
    }
