"""Inputs of schedules for annotated parameters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import typed_orders
from tests.support.typed_orders import JSON_ORDER, ORDER
from wbengine import schedules
from wbengine.engines import _allowed
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.engines._input_types import InvalidInputs
from wbengine.operations import _operation
from wbengine.persistence import base
from wbengine.schedules import Schedule, Schedules

MODULE = typed_orders.__name__
CHECKOUT = f"{MODULE}:checkout"


pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


@pytest.mark.parametrize("order", [JSON_ORDER, {"number": "7"}, "7"])
def test_python_must_pass_instances(store: base.Backend, order: Any) -> None:
    with pytest.raises(TypeError, match=r"inputs\['order'\]: expected Order"):
        schedules.add("s", CHECKOUT, every=60, inputs={"order": order}, backend=store)
    assert Schedules(store).all() == []


def test_instances_are_stored(store: base.Backend) -> None:
    schedules.add("s", CHECKOUT, every=60, inputs={"order": ORDER}, backend=store)
    assert Schedules(store).get("s").schedule.inputs == {"order": ORDER}


def test_planned_time_is_converted_also_for_python(store: base.Backend) -> None:
    inputs = {"order": ORDER, "count": 2}
    schedules.add("s", f"{MODULE}:dated", every=60, inputs=inputs, backend=store)
    assert Schedules(store).get("s").schedule.inputs == inputs
    with pytest.raises(TypeError, match=r"inputs\['count'\]: expected int, got '2'"):
        Schedules(store).add(
            Schedule(name="t", factory=f"{MODULE}:dated", every=60, inputs={**inputs, "count": "2"})
        )


def test_json_is_converted(store: base.Backend) -> None:
    definition = Schedule(name="s", factory=CHECKOUT, every=60, inputs=JsonInputs(order=JSON_ORDER))
    entry = Schedules(store).add(definition)
    assert entry.schedule.inputs == {"order": ORDER}


def test_operation_converts_json_and_refuses_the_rest(
    store: base.Backend, request: pytest.FixtureRequest
) -> None:
    _allowed.set_for_process([MODULE])
    request.addfinalizer(lambda: _allowed.set_for_process(None))
    add, scope = _operation.table()["schedule add"], _operation.Scope(store, "test")
    arguments = {"schedule": "s", "factory": CHECKOUT, "every": 60}
    with pytest.raises(InvalidInputs, match=r"inputs\['order'\].number: expected int, got '7'"):
        add.perform(scope, {**arguments, "inputs": {"order": {**JSON_ORDER, "number": "7"}}})
    assert Schedules(store).all() == []
    add.perform(scope, {**arguments, "inputs": {"order": JSON_ORDER}})
    assert Schedules(store).get("s").schedule.inputs == {"order": ORDER}
