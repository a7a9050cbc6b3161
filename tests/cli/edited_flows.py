"""Edits of the code of flows in progress, and what happens to the flows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EDITS", "Edit"]

WORKFLOW = """\
import asyncio

from wbengine import task
from {helpers} import audit


@task.task
def charge(order, currency="EUR"):
    return f"charged {{order}}"


@charge.revert
def refund(order, **_):
    pass


@task.task
def pack(order):
    return [1, 2, 3]


@task.task
def ship(item):
    return item


@task.workflow(name="order")
def order(steps, order, express=False):
    receipt = steps.run(charge, order)
    for item in steps.run(pack, order):
        steps.run(ship, item)
    steps.run(audit, receipt)
    steps.wait_for("go", timeout=3600)
    steps.run(ship, 9)
    return receipt
"""

HELPERS = """\
from wbengine import task


@task.task
def audit(receipt):
    return receipt
"""

COROUTINES = """\
import asyncio

from wbengine import task


@task.task
def charge(order):
    return order


@task.workflow(name="order")
async def order(steps, order):
    async with asyncio.TaskGroup() as group:
        going = group.create_task(steps.wait_for("go"))
        charged = group.create_task(steps.run(charge, order))
        paid = group.create_task(steps.wait_for("paid"))
    return going.result(), charged.result(), paid.result()
"""

GRAPH = """\
from wbengine import task
from wbengine.patterns import linear_flow


class Quote(task.Task):
    default_provides = "price"
    version = (1, 0)

    def execute(self, order):
        return 7


class Charge(task.Task):
    def execute(self, price):
        return None

    def revert(self, **_):
        pass


class Ship(task.Task):
    def execute(self, order, price):
        return None


class Audit(task.Task):
    def execute(self):
        return None


def order():
    return linear_flow.Flow("order").add(
        Quote("quote"),
        Charge("charge"),
        task.WaitFor("go", name="wait"),
        Ship("ship"),
    )
"""


class Edit(NamedTuple):
    """An edit, and what happens to a flow that has begun with the code before it.

    :ivar name: name of the module with the flow.
    :ivar before: its code when the flow begins.
    :ivar after: its code afterwards; None: the module is removed.
    :ivar helpers: code of the module of helpers afterwards.
    """

    name: str
    before: str
    after: str | None
    result: str
    helpers: str = HELPERS


def edit(
    name: str, result: str, *replacements: tuple[str, str], base: str = WORKFLOW, helpers: str = ""
) -> Edit:
    name = f"edit_{name}"
    before = base.format(helpers=f"helpers_{name}") if base is WORKFLOW else base
    after = before
    for old, new in replacements:
        assert old in after, (name, old)
        after = after.replace(old, new)
    return Edit(name, before, after, result, helpers or HELPERS)


CHARGED = "    receipt = steps.run(charge, order)\n"
LOOP = "    for item in steps.run(pack, order):\n        steps.run(ship, item)\n"
AUDITED = "    steps.run(audit, receipt)\n"
GO = '    steps.wait_for("go", timeout=3600)\n'
LATER = "    steps.run(ship, 9)\n"
GUARD = 'steps.version("pack", 2)'
DEF = "def order(steps, order, express=False):"
REVERSED = "    for item in reversed(steps.run(pack, order)):\n        steps.run(ship, item)\n"
LISTED = "    [steps.run(ship, item) for item in steps.run(pack, order)]\n"
CHARGE = '        Charge("charge"),\n'
QUOTE = '        Quote("quote"),\n'
SHIP = '        Ship("ship"),\n'


def workflow_edits() -> Iterator[Edit]:
    yield edit("nothing", "continues")
    yield edit("insert_first", "blocked", (CHARGED, f"    steps.run(pack, 1)\n{CHARGED}"))
    yield edit("insert_between", "blocked", (AUDITED, f"    steps.run(pack, 1)\n{AUDITED}"))
    yield edit("insert_later", "continues", (LATER, f"{LATER}    steps.run(pack, 1)\n"))
    yield edit("delete", "blocked", (AUDITED, ""))
    yield edit("delete_later", "continues", (LATER, ""))
    yield edit("end_earlier", "blocked", (AUDITED + GO, "    return receipt\n"))
    yield edit("reorder", "blocked", (CHARGED + LOOP, LOOP + CHARGED))
    yield edit(
        "rename_task", "blocked", ("(pack, order)", "(wrap, order)"), ("def pack", "def wrap")
    )
    yield edit("argument", "blocked", ("(charge, order)", '(charge, order, currency="USD")'))
    yield edit("keyword", "continues", ("(charge, order)", "(charge, order=order)"))
    yield edit("task_parameter", "continues", ("def ship(item)", "def ship(item, slow=False)"))
    yield edit("loop_order", "blocked", (LOOP, REVERSED))
    yield edit("loop_form", "continues", (LOOP, LISTED))
    yield edit("task_default", "continues", ('currency="EUR"', 'currency="USD"'))
    yield edit("stored_default", "continues", ("express=False", "express=True"))
    yield edit("required_input", "refused", (DEF, DEF.replace("express=False", "card")))
    yield edit("optional_input", "continues", (DEF, DEF.replace("express=False", "card=None")))
    yield edit("rename_function", "refused", (DEF, DEF.replace("order(", "orders(", 1)))
    yield edit("rename_workflow", "abandons", ('name="order"', 'name="orders"'))
    yield edit("sleep_for_wait", "blocked", (GO, "    steps.sleep(3600)\n"))
    yield edit("task_for_wait", "blocked", (GO, "    steps.run(pack, 5)\n"))
    yield edit("signal", "blocked", ('"go"', '"gone"'))
    yield edit("timeout", "blocked", ("timeout=3600", "timeout=7200"))
    yield edit("raise", "blocked", (AUDITED, '    raise ValueError("no")\n'))
    yield edit("to_async", "continues", *coroutine())
    yield edit("scope", "continues", (LOOP, "    with steps.scope():\n    " + indented(LOOP)))
    yield edit("scope_that_reverts", "blocked", (LOOP, REVERTED))
    guarded = f"    if {GUARD} >= 2:\n        steps.run(pack, 1)\n"
    yield edit("guard", "continues", (AUDITED, guarded + AUDITED))
    yield edit("wrong_guard", "blocked", (AUDITED, guarded.replace(">=", "<") + AUDITED))
    kept = f"    if {GUARD} < 2:\n    {AUDITED}"
    yield edit("guarded_removal", "continues", (AUDITED, kept))
    moved = 'from wbengine import task\n\n\n@task.task(name="audit")\ndef check(receipt): ...\n'
    moved += "\n\naudit = check\n"
    yield edit("other_helper", "blocked", helpers=moved)
    module = edit("removed_module", "refused")
    yield module._replace(after=None)
    yield edit("syntax", "refused", (DEF, DEF + ":"))
    own = "@task.task\ndef audit(receipt): ...\n\n\n@task.task\ndef charge("
    imported = "from helpers_edit_moved_task import audit\n"
    yield edit("moved_task", "blocked", (imported, ""), ("@task.task\ndef charge(", own))


REVERTED = """\
    try:
        with steps.scope():
            for item in steps.run(pack, order):
                steps.run(ship, item)
            raise ValueError("no")
    except ValueError:
        pass
"""


def indented(text: str) -> str:
    return text.replace("\n", "\n    ").rstrip(" ")


def coroutine() -> Iterator[tuple[str, str]]:
    yield "def order(steps", "async def order(steps"
    yield "steps.run", "await steps.run"
    yield "steps.wait_for", "await steps.wait_for"


def coroutine_edits() -> Iterator[Edit]:
    yield edit("tasks_nothing", "continues", base=COROUTINES)
    paid = '        paid = group.create_task(steps.wait_for("paid"))\n'
    raised = f'{paid}        await charged\n        raise ValueError("no")\n'
    yield edit("tasks_fail", "fails", (paid, raised), base=COROUTINES)
    later = (
        '    paid = asyncio.ensure_future(steps.wait_for("paid"))\n    await paid\n    return going'
    )
    yield edit("tasks_later", "unclear", (paid, ""), ("    return going", later), base=COROUTINES)
    charged = "        charged = group.create_task(steps.run(charge, order))\n"
    yield edit("tasks_order", "blocked", (charged + paid, paid + charged), base=COROUTINES)


def graph_edits() -> Iterator[Edit]:
    def graph(name: str, result: str, *replacements: tuple[str, str]) -> Edit:
        return edit(f"graph_{name}", result, *replacements, base=GRAPH)

    audit = '        Audit("audit"),\n'
    yield graph("nothing", "continues")
    yield graph("add_before", "continues", (QUOTE, audit + QUOTE))
    yield graph("add_after", "continues", (SHIP, SHIP + audit))
    yield graph("remove_done", "continues", (CHARGE, ""))
    yield graph("remove_pending", "continues", (SHIP, ""))
    yield graph("rename_done", "continues", ('"charge"', '"debit"'))
    yield graph("remove_provider", "refused", (QUOTE, ""))
    yield graph("new_requirement", "refused", ("(self, order, price)", "(self, order, address)"))
    yield graph("done_requirement", "refused", ("(self, price)", "(self, address)"))
    yield graph("minor_version", "continues", ("(1, 0)", "(1, 1)"))
    yield graph("major_version", "refused", ("(1, 0)", "(2, 0)"))
    retry = 'linear_flow.Flow("order", retry=retry.Times(2, "charge"))'
    imports = "from wbengine import task"
    kind = (imports, "from wbengine import retry, task"), ('linear_flow.Flow("order")', retry)
    yield graph("kind", "refused", (CHARGE, ""), *kind)
    yield graph("same_names", "refused", ('"ship"', '"quote"'))


EDITS = (*workflow_edits(), *coroutine_edits(), *graph_edits())
