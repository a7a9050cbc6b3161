"""Replacement of inputs and results before a flow runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import deciders, engines, exceptions, states, task
from wbengine.engines.base import Engine
from wbengine.patterns import graph_flow, linear_flow
from wbengine.persistence import base, models
from wbengine.persistence._edits import Edits, replaceable_inputs
from wbengine.persistence.backends import _memory

CALLS: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    CALLS.clear()
    yield


@task.task(provides="price")
def quote(order: int) -> int:
    CALLS.append(("quote", order))
    return order * 10


@task.task(provides="payment")
def charge(order: int, price: int, card: str) -> str:
    CALLS.append(("charge", (price, card)))
    if card == "bad":
        raise ValueError("bad card")
    return f"{card} {price}"


@task.task
def refund(order: int) -> None:
    """Never runs."""


@task.workflow
def shipping(steps: Any, order: int, address: str, note: str = "") -> str:
    steps.run(quote, order)
    steps.wait_for("go")
    steps.run(label, address)
    return note


@task.task
def label(address: str) -> None:
    CALLS.append(("label", address))


def failed(flow: Any = None, **inputs: Any) -> Engine:
    """Return the engine of a flow that failed without a reversion."""
    flow = linear_flow.Flow("buy").add(quote(), charge()) if flow is None else flow
    backend = _memory.MemoryBackend()
    engine = engines.load(flow, inputs or {"order": 1, "card": "bad"}, backend=backend,
        never_resolve=True)  # fmt: skip
    with pytest.raises(Exception):  # noqa: B017
        engine.run()
    CALLS.clear()
    return engine


def retry(engine: Engine, **edits: Any) -> None:
    engine.reset(failed_only=True, edits=Edits(**edits))
    engine.run()


def parked(flow: Any, **inputs: Any) -> Engine:
    engine = engines.load(flow, inputs, backend=_memory.MemoryBackend())
    engine.park_after = 0.0
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    return engine


def test_failed_task_runs_with_the_replaced_input() -> None:
    engine = failed()
    retry(engine, inputs={"card": "good"})
    assert CALLS == [("charge", (10, "good"))]
    assert engine.storage.fetch_all() == {
        "order": 1, "card": "good", "price": 10, "payment": "good 10",
    }  # fmt: skip
    reasons = [change.why for change in engine.storage.flow_detail.history]
    assert "input 'card' replaced" in reasons


def test_replaced_input_is_stored_with_the_reset() -> None:
    engine = failed()
    engine.reset(failed_only=True, edits=Edits({"card": "good"}))
    backend = engine.storage.backend
    assert isinstance(backend, base.Backend)
    detail = backend.get_connection().get_flow_details(engine.storage.flow_uuid)
    injector = next(atom for atom in detail if atom.name == models.INJECTOR)
    assert injector.results == {"order": 1, "card": "good"}
    assert detail.state == states.PENDING
    assert detail.history[-1].why == "input 'card' replaced"


def test_input_that_a_complete_task_used_is_refused_without_side_effects() -> None:
    engine = failed()
    with pytest.raises(exceptions.InvalidState, match=r"Input 'order' .* task '.*quote' has used"):
        retry(engine, inputs={"card": "good", "order": 2})
    assert engine.storage.get_flow_state() == states.FAILURE
    assert engine.storage.fetch("card") == "bad"


def test_input_that_only_the_revert_of_a_complete_task_uses_is_refused() -> None:
    class Book(task.Task):
        def execute(self) -> None:
            """Do nothing."""

        def revert(self, card: str, **kwargs: Any) -> None:
            """Do nothing."""

    engine = failed(linear_flow.Flow("f").add(Book("book"), quote(), charge()), order=1, card="bad")
    with pytest.raises(exceptions.InvalidState, match="task 'book' has used it"):
        retry(engine, inputs={"card": "good"})


def test_unknown_input_is_refused_with_a_hint() -> None:
    with pytest.raises(exceptions.NotFound, match=r"no input 'crad' \(did you mean 'card'\?\)"):
        retry(failed(), inputs={"crad": "good"})


def test_value_that_an_atom_injects_is_not_an_input() -> None:
    flow = linear_flow.Flow("f").add(quote(inject={"order": 5}), charge())
    engine = failed(flow, order=1, card="bad")
    retry(engine, inputs={"card": "good", "order": 2})
    assert CALLS == [("charge", (50, "good"))]


def test_missing_optional_input_may_be_set() -> None:
    @task.task
    def ship(card: str, note: str = "none") -> None:
        CALLS.append(("ship", note))
        if note == "none":
            raise ValueError("no note")

    engine = failed(linear_flow.Flow("f").add(ship()), card="x")
    retry(engine, inputs={"note": "fragile"})
    assert CALLS == [("ship", "fragile")]


def test_value_that_a_task_provides_is_not_an_input() -> None:
    engine = failed(linear_flow.Flow("f").add(quote(), refund(), charge()), order=1, card="bad")
    with pytest.raises(exceptions.InvalidState, match="has used it"):
        retry(engine, inputs={"order": 3})
    with pytest.raises(exceptions.NotFound, match="no input 'payment'"):
        retry(engine, inputs={"payment": "x"})


def test_result_is_replaced_for_tasks_that_run_again() -> None:
    engine = failed()
    name = quote().name
    engine.reset(failed_only=True, edits=Edits({"card": "good"}, {name: 7}))
    engine.run()
    assert CALLS == [("charge", (7, "good"))]
    reasons = [change.why for change in engine.storage.flow_detail.history]
    assert f"input 'card' and result of {name!r} replaced" in reasons


def test_result_that_a_complete_task_used_is_refused() -> None:
    @task.task
    def note(price: int) -> None:
        """Do nothing."""

    engine = failed(linear_flow.Flow("f").add(quote(), note("note"), charge()), order=1, card="bad")
    with pytest.raises(exceptions.InvalidState, match="task 'note' has used it"):
        retry(engine, results={quote().name: 7})


def test_result_of_a_nearer_task_of_the_same_name_counts() -> None:
    class Price(task.Task):
        default_provides = "price"

        def execute(self) -> int:
            return 5

    class Use(task.Task):
        def execute(self, price: int) -> None:
            """Do nothing."""

    flow = linear_flow.Flow("f").add(Price("far"), Price("near"), Use("use"), quote(), charge())
    engine = failed(flow, order=1, card="bad")
    with pytest.raises(exceptions.InvalidState, match="task 'use' has used it"):
        retry(engine, results={"near": 7})
    engine.reset(failed_only=True, edits=Edits(results={"far": 7}))


def test_result_that_a_decider_used_is_refused() -> None:
    flow = graph_flow.Flow("f")
    first, second, third = quote("first"), refund("second"), charge("third")
    flow.add(first, second, third)
    flow.link(first, second, decider=lambda history: False, decider_depth=deciders.Depth.ATOM)
    engine = failed(flow, order=1, card="bad")
    with pytest.raises(exceptions.InvalidState, match="decider before 'second' has used it"):
        retry(engine, results={"first": 7})


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("nothing", exceptions.NotFound, "no task 'nothing'"),
        (charge().name, exceptions.InvalidState, "is in FAILURE and has no result"),
    ],
)
def test_result_of_a_task_without_one_is_refused(
    name: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        retry(failed(), results={name: 1})


def test_reverted_flow_runs_again_with_any_input() -> None:
    engine = engines.load(linear_flow.Flow("buy").add(quote(), charge()),
        {"order": 1, "card": "bad"}, backend=_memory.MemoryBackend())  # fmt: skip
    with pytest.raises(ValueError, match="bad card"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    CALLS.clear()
    engine.prepare()
    retry(engine, inputs={"order": 2, "card": "good"})
    assert CALLS == [("quote", 2), ("charge", (20, "good"))]


def test_workflow_continues_with_an_input_that_no_recorded_step_used() -> None:
    engine = parked(shipping, order=1, address="old")
    CALLS.clear()
    engine.reset(failed_only=True, edits=Edits({"address": "new", "note": "n"}))
    engine.signal("go")
    engine.run()
    assert CALLS == [("label", "new")]
    assert engine.storage.fetch("result") == "n"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_input_that_a_recorded_step_used_is_refused(kind: str) -> None:
    @task.workflow(name="shipping")
    async def async_shipping(steps: Any, order: int) -> None:
        await steps.run(quote, order)
        await steps.wait_for("go")

    flow = {"plain": shipping, "async": async_shipping}[kind]
    inputs = {"order": 1, **({"address": "x"} if kind == "plain" else {})}
    engine = parked(flow, **inputs)
    with pytest.raises(exceptions.InvalidState) as caught:
        retry(engine, inputs={"order": 2})
    message = str(caught.value)
    assert (
        "cannot be replaced, because a recorded step has used it: step 0 is recorded as" in message
    )
    assert 'quote({"order":1}) and is now ' in message and 'quote({"order":2})' in message
    assert engine.storage.fetch("order") == 1


def test_input_without_which_a_recorded_step_is_not_called_is_refused() -> None:
    @task.workflow
    def waiting(steps: Any, wait: bool) -> None:
        if wait:
            steps.wait_for("go")

    engine = parked(waiting, wait=True)
    with pytest.raises(exceptions.InvalidState, match="is not called any more"):
        retry(engine, inputs={"wait": False})


def test_input_without_which_a_workflow_waits_for_fewer_steps_is_refused() -> None:
    @task.workflow
    async def waiting(steps: Any, both: bool) -> None:
        await asyncio.gather(*(steps.wait_for(name) for name in ("go", "stop")[: 1 + both]))

    engine = parked(waiting, both=True)
    with pytest.raises(exceptions.InvalidState, match="is not called any more"):
        retry(engine, inputs={"both": False})


def test_stored_names_of_inputs_decide_without_the_code() -> None:
    engine = failed()
    backend = engine.storage.backend
    assert backend is not None
    connection = backend.get_connection()
    detail = connection.get_flow_details(engine.storage.flow_uuid)
    outline = connection.get_outline(detail.uuid)
    assert outline is not None
    assert outline.used_inputs == {quote().name: ("order",), charge().name: ("order", "card")}
    assert replaceable_inputs(detail, outline.used_inputs) == {"card": "bad"}
    Edits({"card": "good"}).check(detail, outline.used_inputs)
    with pytest.raises(exceptions.InvalidState, match="has used it"):
        Edits({"order": 2}).check(detail, outline.used_inputs)


def test_edits_are_restored_from_their_stored_form() -> None:
    edits = Edits({"card": ("a", 1)}, {"quote": {1: 2}})
    assert Edits.from_dict(edits.to_dict("u"), "u") == edits
    for damaged in (None, {}, {"inputs": 1, "results": {}}, {"inputs": {1: 2}, "results": {}}):
        with pytest.raises(exceptions.InvalidFormat):
            Edits.from_dict(damaged, "u")


def test_full_reset_rejects_edits() -> None:
    with pytest.raises(ValueError, match="requires failed_only=True"):
        failed().reset(edits=Edits({"card": "x"}))
