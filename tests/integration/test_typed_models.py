"""Models of pydantic as inputs, signals and results of a submitted workflow."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from tests.support import typed_models
from tests.support.typed_models import Approval, Line, Order, Receipt
from wbengine import engines, states, testing
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.persistence import backends

JSON_ORDER = {"number": 7, "lines": [{"amount": "1.50"}]}


def test_models_are_converted_stored_and_returned(tmp_path: Path) -> None:
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as backend:
        inputs = JsonInputs(order=JSON_ORDER)
        handle = engines.submit(typed_models.checkout, inputs=inputs, backend=backend)
        testing.run_submitted(backend)
        assert handle.state == states.WAITING
        with pytest.raises(ValueError, match=r"signals\['approved'\].by: 3 is not of type"):
            handle.signal("approved", {"by": 3})
        handle.signal("approved", Approval(by="ann"))
        testing.run_submitted(backend)
        order = Order(number=7, lines=[Line(amount="1.50")])  # type: ignore[arg-type]
        assert handle.value(10) == Receipt(order=order, by="ann")


def test_faults_of_models_name_the_path() -> None:
    wrong = JsonInputs(order={"number": 7, "lines": [{"amount": "abc", "count": 0}]})
    with pytest.raises(ValueError) as caught:
        engines.load(typed_models.checkout, inputs=wrong)
    assert str(caught.value).partition(": ")[2] == (
        "inputs['order'].lines[0].amount: Input should be a valid decimal, got 'abc';"
        " inputs['order'].lines[0].count: Input should be greater than or equal to 1, got 0"
    )
