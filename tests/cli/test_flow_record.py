"""`wbengine flow record`, and the replay of its records in tests."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, write_module
from wbengine import engines, exceptions, testing
from wbengine.persistence import base
from wbengine.types import failure as ft

CODE = """\
from wbengine import task


@task.task
def quote(order):
    return {"price": 5, "card": "4111-"}


@task.task
def charge(order, price, key):
    return ["paid", price]


@task.task
def ship(order):
    raise LookupError(f"no box for {order}")


@task.workflow(name="order")
def order(steps, order):
    price = steps.run(quote, order)
    if steps.version("log", 2) >= 2:
        steps.run(charge, order, price, key=str(steps.uuid4()))
    try:
        steps.run(ship, order)
    except LookupError:
        steps.sleep(0)
    approved = steps.wait_for("go")
    paid = steps.run(charge, order, approved, key="second")
    return paid[1]
"""


pytestmark = pytest.mark.usefixtures("edited_code")


def module(*replacements: tuple[str, str]) -> Any:
    """Import the code again, with replacements."""
    text = CODE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    write_module("recorded_orders", text)
    return importlib.import_module("recorded_orders")


def run(store: base.Backend, *, to_end: bool = True) -> str:
    engine = engines.load(module().order, inputs={"order": 7}, backend=store)
    if to_end:
        engine.signal("go", "yes")
    engine.park_after = 0.0
    engine.run()
    return engine.storage.flow_uuid


def record(wbengine: Command, uuid: str, *words: str) -> Path:
    answer = wbengine("flow", "record", uuid, "-o", "record.json", *words)
    assert answer.code == 0, answer.err
    return Path("record.json")


def test_record_with_values_is_replayed_to_the_end(wbengine: Command, store: base.Backend) -> None:
    path = record(wbengine, run(store), "--values")
    replayed = testing.replay(module().order, path)
    assert replayed == testing.Replayed(6, 6, True, "yes")
    assert path.stat().st_mode & 0o077 == 0


def test_record_of_flow_in_progress_is_replayed_to_its_wait(
    wbengine: Command, store: base.Backend
) -> None:
    path = record(wbengine, run(store, to_end=False), "--values")
    assert testing.replay(module().order, path) == testing.Replayed(5, 5, False, None)


def test_masked_record_contains_no_values(wbengine: Command, store: base.Backend) -> None:
    uuid = run(store)
    text = wbengine("flow", "record", uuid).out
    assert not any(value in text for value in ("4111-", "paid", "yes", "no box", '"value": 7'))
    assert json.loads(text)["arguments"] == {"order": {"masked": "int"}}


PASSED_ON = ("    return paid[1]\n", "    return paid\n")
QUOTED = "    price = steps.run(quote, order)\n"


@pytest.mark.parametrize("line", [
    "steps.tag(order=order)", "steps.tag(price=price, paid=True)", "steps.publish('price', price)",
])  # fmt: skip
def test_masked_values_are_passed_on(wbengine: Command, store: base.Backend, line: str) -> None:
    path = record(wbengine, run(store))
    replayed = testing.replay(module(PASSED_ON, (QUOTED, f"{QUOTED}    {line}\n")).order, path)
    assert replayed[:3] == (6, 6, True) and str([replayed.value]) == "[<masked list>]"
    with pytest.raises(exceptions.InvalidState, match="--values"):
        assert replayed.value == ["paid", "yes"]


@pytest.mark.parametrize("line", [
    "price['price']", "steps.run(charge, order, 1, key=f'{price}')", "steps.sleep(price)",
    "steps.wait_for(price)", "steps.wait_for('go', timeout=price)", "price == 5 or price",
    "steps.version('log', price)", "[part for part in price]",
])  # fmt: skip
@pytest.mark.parametrize("is_caught", [False, True])
def test_used_masked_value_names_its_step(
    wbengine: Command, store: base.Backend, line: str, is_caught: bool
) -> None:
    path = record(wbengine, run(store))
    line = f"    {line}\n"
    if is_caught:
        line = f"    try:\n    {line}    except Exception:\n        steps.run(ship, order)\n"
    expected = r"The result of step 0 \('quote'\) is masked, and the function uses this dict: .*--v"
    with pytest.raises(exceptions.InvalidState, match=expected):
        testing.replay(module(PASSED_ON, (QUOTED, QUOTED + line)).order, path)


def test_difference_in_a_masked_record_has_a_note(wbengine: Command, store: base.Backend) -> None:
    uuid = run(store)
    branch = (QUOTED, QUOTED + "    if not isinstance(price, dict):\n        return 1\n")
    with pytest.raises(exceptions.NonDeterministicWorkflow) as caught:
        testing.replay(module(branch).order, record(wbengine, uuid))
    assert "checks their types" in caught.value.__notes__[0]
    path = record(wbengine, uuid, "--values")
    assert testing.replay(module(branch).order, path).is_over


EDITS = {
    "other task": ("steps.run(ship, order)", "steps.run(quote, order)"),
    "other signal": ('wait_for("go")', 'wait_for("gone")'),
    "other constant": ('key="second"', 'key="third"'),
    "removed step": ("        steps.sleep(0)\n", "        pass\n"),
    "earlier end": ('    approved = steps.wait_for("go")\n', "    return 1\n"),
    "other version": (">= 2", ">= 3"),
}


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("name", EDITS)
def test_other_code_differs_from_the_record(
    wbengine: Command, store: base.Backend, name: str, values: bool
) -> None:
    path = record(wbengine, run(store), *(["--values"] if values else []))
    is_hidden = name == "other constant" and not values  # The call has a masked argument.
    expected = exceptions.NonDeterministicWorkflow
    with contextlib.nullcontext() if is_hidden else pytest.raises(expected, match="recorded as"):
        testing.replay(module(EDITS[name], PASSED_ON).order, path)


def test_masked_failure_has_the_class_of_the_failure(
    wbengine: Command, store: base.Backend
) -> None:
    path = record(wbengine, run(store))
    content = json.loads(path.read_text(encoding="utf-8"))
    (failure,) = [step["failure"] for step in content["steps"] if "failure" in step]
    assert ft.Failure.from_dict(failure).check(LookupError) is LookupError


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "wbengine/flow-record/1"}'])
def test_damaged_record_is_refused(store: base.Backend, text: str) -> None:
    Path("record.json").write_text(text, encoding="utf-8")
    with pytest.raises(exceptions.InvalidFormat):
        testing.replay(module().order, "record.json")


def test_only_workflows_are_replayed(store: base.Backend) -> None:
    with pytest.raises(TypeError, match="must be a workflow"):
        testing.replay(module().quote, "record.json")


def test_values_are_written_only_to_a_file(wbengine: Command, store: base.Backend) -> None:
    answer = wbengine("flow", "record", run(store), "--values")
    assert (answer.code, answer.out) == (2, "")
