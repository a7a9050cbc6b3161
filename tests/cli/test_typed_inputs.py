"""Commands that convert inputs of annotated parameters."""

from __future__ import annotations

import contextlib
import decimal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.support.typed_orders import Line, Order
from wbengine.persistence import backends, models
from wbengine.schedules import Schedules

CHECKOUT = "tests.support.typed_orders:checkout"
INPUTS = ("--inputs", '{"order": {"number": 7, "lines": [{"amount": "1.50"}]}}')
WRONG = ("--inputs", '{"order": {"number": 7, "lines": [{"amount": "abc"}]}}')
FAULT = "inputs['order'].lines[0].amount: expected Decimal, got 'abc'"
ORDER = Order(7, [Line(decimal.Decimal("1.50"))])


@pytest.fixture
def store(home: Path) -> Path:
    (home / "wbengine.toml").write_text('persistence = "sqlite:///flows.db"\n')
    return home


def stored_inputs(store: Path, uuid: str) -> Any:
    with (
        contextlib.closing(backends.fetch(f"sqlite:///{store}/flows.db")) as backend,
        contextlib.closing(backend.get_connection()) as connection,
    ):
        detail = connection.get_flow_details(uuid)
    return next(atom.results for atom in detail if atom.name == models.INJECTOR)


def test_flow_run_converts_inputs(wbengine: Command, store: Path) -> None:
    answer = wbengine("flow", "run", CHECKOUT, *INPUTS)
    assert answer.code == 0 and "Receipt(order=7" in answer.json["results"]["result"]


def test_flow_submit_stores_converted_inputs(wbengine: Command, store: Path) -> None:
    uuid = wbengine("flow", "submit", CHECKOUT, *INPUTS, "--unique", "seven").out.strip()
    assert stored_inputs(store, uuid)["order"] == ORDER


@pytest.mark.parametrize(
    "words",
    [
        ("flow", "run", CHECKOUT),
        ("flow", "submit", CHECKOUT),
        ("schedule", "add", "daily", CHECKOUT, "--every", "1d"),
    ],
)
def test_commands_reject_inputs_with_the_path(
    wbengine: Command, store: Path, words: tuple[str, ...]
) -> None:
    answer = wbengine(*words, *WRONG)
    assert answer.code == 2 and FAULT in answer.error
    assert wbengine("flow", "list", "--json").json["flows"] == []


def test_schedules_store_and_fire_converted_inputs(wbengine: Command, store: Path) -> None:
    assert wbengine("schedule", "add", "daily", CHECKOUT, "--every", "1d", *INPUTS).code == 0
    with contextlib.closing(backends.fetch(f"sqlite:///{store}/flows.db")) as backend:
        assert Schedules(backend).get("daily").schedule.inputs == {"order": ORDER}
    past = ("--from", "3d", "--max-flows", "1")
    uuid = wbengine("schedule", "backfill", "daily", *past).out.split()[1]
    assert stored_inputs(store, uuid)["order"] == ORDER


def test_retry_converts_replaced_inputs(wbengine: Command, store: Path) -> None:
    failed = wbengine("flow", "run", "tests.support.typed_orders:failing", *INPUTS)
    assert failed.code == 1
    uuid = failed.json["uuid"]
    number = 'order={"number": 8, "lines": []}'
    assert FAULT in wbengine("flow", "retry", uuid, "--set", f"order={WRONG[1][10:-1]}").error
    retried = wbengine("flow", "retry", uuid, "--set", number)
    assert retried.code == 0, retried.error
    assert stored_inputs(store, uuid)["order"] == Order(8, [])
