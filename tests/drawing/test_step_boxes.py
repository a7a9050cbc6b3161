"""Boxes and arrows for the steps of workflows in drawings."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from tests.support import shown_workflows
from wbengine import drawing, engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends
from wbengine.views import flow_status


@task.task
def quote(number: int) -> int:
    return number


@task.task
def pay(number: int) -> int:
    return number


@task.task
def mail(number: int) -> int:
    return number


@task.workflow(name="offers")
async def offers(steps: Any) -> None:
    await steps.run(quote, 1)
    await asyncio.gather(steps.run(pay, 2), steps.run(mail, 3))
    await steps.run(quote, 4)


def view_of(flow: Any) -> flow_status.FlowView:
    with backends.backend("memory://") as backend:
        engine = engines.load(flow, backend=backend)
        with contextlib.suppress(ConnectionError):
            engine.run()
        with contextlib.closing(backend.get_connection()) as connection:
            return flow_status.read(connection, engine.storage.flow_uuid)


def graph(view: flow_status.FlowView) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the names of the boxes and frames, and the arrows between them."""
    data = json.loads(drawing.draw(view.outline, view, format="json"))
    names = {node["id"]: node["name"] for node in data["nodes"]}
    return list(names.values()), [(names[start], names[end]) for start, end in data["edges"]]


def test_parallel_steps_are_drawn_side_by_side() -> None:
    names, arrows = graph(view_of(offers))
    assert names == ["offers", "0 quote", "1 pay", "2 mail", "3 quote"]
    assert arrows == [
        ("0 quote", "1 pay"), ("0 quote", "2 mail"), ("1 pay", "3 quote"), ("2 mail", "3 quote"),
    ]  # fmt: skip


def test_workflow_of_a_flow_is_a_frame_between_its_neighbors() -> None:
    flow = linear_flow.Flow("night").add(
        quote(name="before", inject={"number": 1}),
        offers(),
        pay(name="after", inject={"number": 1}),
    )
    names, arrows = graph(view_of(flow))
    assert names[:4] == ["night", "before", "offers", "after"] and "3 quote" in names
    assert ("before", "offers") in arrows and ("offers", "after") in arrows


def test_loop_is_one_box_and_earlier_steps_are_omitted() -> None:
    assert graph(view_of(shown_workflows.looped))[0] == ["looped", "9 poll x 10"]
    names, _ = graph(view_of(shown_workflows.various))
    assert names[1].endswith(" more steps") and len(names) == 42


def test_boxes_of_steps_have_states_and_links() -> None:
    view = view_of(shown_workflows.undone)
    svg = drawing.draw(view.outline, view, format="svg", link=lambda atom: f"/atoms/{atom.uuid}")
    (atom,) = view.atoms
    assert atom.steps is not None
    for step in atom.steps.shown:
        assert f'href="/atoms/{step.uuid}"' in svg and f'data-uuid="{step.uuid}"' in svg
    assert "failed, reverted" in svg and "<img" not in svg
    text = drawing.draw(view.outline, view, format="mermaid")
    assert "0 book" in text
