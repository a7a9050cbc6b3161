"""Inputs of annotated parameters: conversion of JSON, and checks of callers in Python."""

import contextlib
import decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support import python, typed_orders
from tests.support.typed_orders import JSON_ORDER, ORDER, Receipt, Speed
from wbengine import engines, testing
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.persistence import backends

MODULE = typed_orders.__name__


def stored(flow: Any, inputs: Any) -> dict[str, Any]:
    """Return the inputs of a new flow."""
    return dict(engines.load(flow, inputs=inputs).storage.inputs())


def test_json_is_converted_before_it_is_stored() -> None:
    options = {"limit": 3, "speed": "fast"}
    values = stored(
        typed_orders.checkout, JsonInputs(order=JSON_ORDER, options=options, retries="unchecked")
    )
    expected = {"limit": decimal.Decimal(3), "speed": Speed.FAST}
    assert values == {"order": ORDER, "options": expected, "retries": "unchecked"}


def test_all_faults_of_json_are_in_one_error() -> None:
    wrong = {"number": "7", "lines": [{}, {"amount": "abc"}]}
    with pytest.raises(ValueError) as caught:
        stored(typed_orders.checkout, JsonInputs(order=wrong, options={"lmit": 1}))
    assert str(caught.value) == (
        f"Invalid inputs of flow '{MODULE}.checkout': inputs['order'].number: expected int, got"
        " '7'; inputs['order'].lines[0].amount: missing, expected Decimal;"
        " inputs['order'].lines[1].amount: expected Decimal, got 'abc';"
        " inputs['options']['lmit']: Options has no such field (did you mean 'limit'?)"
    )


@pytest.mark.parametrize("inputs", [{"order": JSON_ORDER}, {"order": ORDER, "options": {"x": 1}}])
def test_python_must_pass_instances(inputs: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"inputs\['(order|options)'\]"):
        stored(typed_orders.checkout, inputs)


def test_workflow_runs_with_an_instance() -> None:
    results = engines.run(typed_orders.checkout, {"order": ORDER, "retries": "unchecked"})
    assert results["result"] == Receipt(7, decimal.Decimal("4.00"))


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        ({"order": ORDER, "count": "2"}, TypeError, "expected int, got '2'"),
        (JsonInputs(order=JSON_ORDER, count=True), ValueError, "expected int, got True"),
    ],
)
def test_validate_checks_plain_annotations(inputs: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=rf"inputs\['count'\]: {text}"):
        stored(typed_orders.validated, inputs)
    valid = JsonInputs(order=JSON_ORDER, count=2.0)
    assert stored(typed_orders.validated, valid)["count"] == 2


def test_tasks_of_nested_flows_define_types() -> None:
    values = stored(typed_orders.totals(), JsonInputs(order=JSON_ORDER, speed="fast", other="x"))
    assert values == {"order": ORDER, "speed": Speed.FAST, "other": "x"}


def test_tasks_that_expect_different_types_are_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"use_dict' expects dict\[str, int\], but '.*add_up' expects Order"
    ):
        stored(typed_orders.contradicting(), JsonInputs(order=JSON_ORDER))


def test_annotation_of_an_unknown_name_has_no_effect() -> None:
    assert stored(typed_orders.unknown, JsonInputs(order={"a": 1})) == {"order": {"a": 1}}


def test_stored_inputs_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.load(typed_orders.checkout, inputs={"order": ORDER}, backend="memory")
    monkeypatch.setattr(typed_orders.checkout.fn, "__annotations__", {"order": Speed})
    detail = engine.storage.flow_detail
    again = engines.load(typed_orders.checkout, flow_detail=detail, backend=engine.storage.backend)
    again.run()
    assert again.storage.fetch("result").order == 7


def test_conversion_imports_no_library() -> None:
    program = (
        "import sys\n"
        "from tests.support import typed_orders\n"
        "from wbengine import engines\n"
        "from wbengine.engines._flow_inputs import JsonInputs\n"
        f"inputs = JsonInputs(order={JSON_ORDER!r})\n"
        "storage = engines.load(typed_orders.checkout, inputs=inputs).storage\n"
        "assert isinstance(storage.inputs()['order'], typed_orders.Order)\n"
        "print(sorted({'attr', 'attrs', 'msgspec', 'pydantic'} & sys.modules.keys()))\n"
    )
    assert python.run(["-c", program], stdout=python.PIPE, text=True, real=True).stdout == "[]\n"


def test_handle_returns_the_result_of_the_workflow(tmp_path: Path) -> None:
    inputs = typed_orders.checkout.inputs(ORDER, retries=1)
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as backend:
        handle = engines.submit(typed_orders.checkout, inputs=inputs, backend=backend)
        several = engines.submit(typed_orders.totals, inputs={"order": ORDER}, backend=backend)
        testing.run_submitted(backend)
        assert handle.value(10) == Receipt(7, decimal.Decimal("4.00"))
        with pytest.raises(TypeError, match=r"has 2 tasks, but value\(\) returns"):
            several.value(10)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [((), {}, "'order'"), ((ORDER,), {"ordr": 1}, "'ordr'"), ((ORDER,), {"order": 1}, "multiple")],
)
def test_inputs_of_a_workflow_bind_as_in_a_call(args: Any, kwargs: Any, text: str) -> None:
    inputs: Any = typed_orders.checkout.inputs
    with pytest.raises(TypeError, match=text):
        inputs(*args, **kwargs)
    assert inputs(ORDER, options={}) == {"order": ORDER, "options": {}}
