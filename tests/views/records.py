"""Flows for tests of views and drawings: handmade records in the form that engines store."""

from __future__ import annotations

from typing import Any

from wbengine import states
from wbengine.persistence import models
from wbengine.types._outline import FLOW, MAP, RETRY, TASK, Outline, OutlineNode
from wbengine.types.failure import Failure

#: Unix time at which all records begin.
T = 1_790_000_000.0


def failure(message: str = "card refused", cause: str | None = None) -> Failure:
    """Return a failure with a traceback and, if `cause` is given, with a cause."""
    try:
        try:
            if cause is not None:
                raise KeyError(cause)
        except KeyError as error:
            raise ValueError(message) from error
        raise ValueError(message)
    except ValueError:
        return Failure()


def atom(flow: models.FlowDetail, name: str, state: str | None, **fields: Any) -> models.AtomDetail:
    """Add the record of an atom; `retry=True` adds a retry controller."""
    made: models.AtomDetail
    made = models.RetryDetail(name) if fields.pop("retry", False) else models.TaskDetail(name)
    made.state = state
    for field, value in fields.items():
        setattr(made, field, value)
    flow.add(made)
    return made


def change(flow: models.FlowDetail, *names: str, **fields: Any) -> models.AtomDetail:
    """Set fields of the named atoms; return the last of them."""
    named = {each.name: each for each in flow}
    for name in names:
        for field, value in fields.items():
            setattr(named[name], field, value)
    return named[names[-1]]


def ran(start: float, seconds: float, worker: str = "host-a:1", attempt: int = 1) -> dict[str, Any]:
    """Return the fields of a completed attempt."""
    return {
        "attempt": attempt,
        "submitted": T + start - 0.1,
        "started": T + start,
        "ended": T + start + seconds,
        "worker": worker,
    }


def order(state: str = states.RUNNING) -> tuple[models.FlowDetail, Outline]:
    """Return a flow of three parts with atoms in many states; `pay` has a retry controller."""
    outline = Outline(
        (
            OutlineNode("order", FLOW, None),
            OutlineNode("check", FLOW, 0),
            OutlineNode("read cart", TASK, 1, "shop.ReadCart"),
            OutlineNode("check stock", TASK, 1, "shop.CheckStock"),
            OutlineNode("check address", TASK, 1, "shop.CheckAddress"),
            OutlineNode("pay", FLOW, 0),
            OutlineNode("pay again", RETRY, 5, "retry.Times"),
            OutlineNode("reserve", TASK, 5, "shop.Reserve"),
            OutlineNode("capture", TASK, 5, "shop.Capture"),
            OutlineNode("notify", MAP, 0, "shop.Mail"),
            OutlineNode("archive", TASK, 0, "shop.Archive", "joins: ANY"),
        ),
        ((1, 5), (5, 9), (7, 8), (9, 10), (5, 10)),
    )
    flow = models.FlowDetail("order")
    flow.created = T - 2
    flow.enter(states.RUNNING, T - 1)
    if state != states.RUNNING:
        flow.enter(state, T + 20)
    atom(flow, "read cart", states.SUCCESS, **ran(0.2, 1.0), results={"items": 3})
    atom(flow, "check stock", states.SUCCESS, **ran(0.2, 2.5, "host-b:7"))
    atom(flow, "check address", states.IGNORE, intention=states.IGNORE)
    atom(flow, "pay again", states.SUCCESS, retry=True, **ran(3, 0.0, "local"))
    atom(flow, "reserve", states.RUNNING, attempt=1, submitted=T + 4)
    atom(flow, "capture", states.PENDING)
    atom(flow, "notify", states.PENDING)
    atom(flow, "archive", states.PENDING)
    return flow, outline


def failed() -> tuple[models.FlowDetail, Outline]:
    """Return the same flow after `capture` failed and `pay` was reverted."""
    flow, outline = order(states.REVERTED)
    refused = (states.FAILURE, failure("card refused", "limit"))
    for name, begun, came, undone in (
        ("reserve", 3.5, (states.SUCCESS, 1), 6.0),
        ("capture", 4.0, refused, 5.0),
    ):
        change(flow, name, **ran(begun, 0.4, "host-b:7")).put(*came)
        change(flow, name).archive_attempt()
        again = ran(undone, 0.3, attempt=4)
        change(flow, name, action="revert", reversions=2, **again).put(states.REVERTED, None)
    return flow, outline


def wide(count: int, width: int = 100, done: float = 0.6) -> tuple[models.FlowDetail, Outline]:
    """Return a linear flow of unordered flows of `width` tasks each, partly done."""
    nodes, edges, last = [OutlineNode("wide", FLOW, None)], [], 0
    flow = models.FlowDetail("wide")
    flow.enter(states.RUNNING, T)
    for part in range(-(-count // width)):
        around = len(nodes)
        nodes.append(OutlineNode(f"part-{part}", FLOW, 0))
        if last:
            edges.append((last, around))
        last = around
        for number in range(part * width, min(count, (part + 1) * width)):
            nodes.append(OutlineNode(f"task-{number}", TASK, around, "shop.Task"))
            if number < count * done:
                times = ran(part + number % width / 100, 0.5, f"host:{number % 4}")
                atom(flow, f"task-{number}", states.SUCCESS, results={"n": number}, **times)
            else:
                atom(flow, f"task-{number}", states.PENDING)
    return flow, Outline(tuple(nodes), tuple(edges))


def flat(count: int) -> tuple[models.FlowDetail, Outline]:
    """Return one unordered flow of `count` tasks."""
    flow = models.FlowDetail("flat")
    nodes = [OutlineNode("flat", FLOW, None)]
    for number in range(count):
        nodes.append(OutlineNode(f"task-{number}", TASK, 0))
        atom(flow, f"task-{number}", states.PENDING if number % 2 else states.SUCCESS)
    return flow, Outline(tuple(nodes), ())
