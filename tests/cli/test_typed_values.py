"""Inputs, arguments and signals of expected types, and their schema."""

from __future__ import annotations

import decimal
import json
from typing import Any

import jsonschema

from tests.cli.conftest import Command
from tests.support.typed_orders import Line, Order
from wbengine import engines, testing
from wbengine.persistence import base, models
from wbengine.schedules import Schedules

ORDERS = "tests.support.typed_orders"
CHECKOUT = f"{ORDERS}:checkout"
INPUTS = ("--inputs", '{"order": {"number": 7, "lines": [{"amount": "1.50"}]}}')
ORDER = Order(7, [Line(decimal.Decimal("1.50"))])


# Schemas. -----------------------------------------------------------------------------------------


def test_schema_of_a_workflow_contains_its_classes(wbengine: Command) -> None:
    answer = wbengine("flow", "schema", f"{ORDERS}:checkout")
    assert answer.code == 0, answer.err
    schema = json.loads(answer.out)
    assert schema["title"] == f"{ORDERS}.checkout"
    assert schema["required"] == ["order"]
    assert schema["properties"]["retries"] == {"type": "integer", "default": 0}
    assert schema["properties"]["options"]["default"] is None
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate({"order": {"number": 1, "lines": [{"amount": "1"}]}})
    (error,) = validator.iter_errors({"order": {"number": "1", "lines": []}})
    assert error.json_path == "$.order.number"


def test_schema_of_a_flow_omits_values_that_tasks_provide(wbengine: Command) -> None:
    schema = wbengine("flow", "schema", f"{ORDERS}:totals", "--json").json["inputs"]
    assert (list(schema["properties"]), schema["required"]) == (["order", "speed"], ["order"])
    assert schema["properties"]["order"] == {"$ref": f"#/$defs/{ORDERS}.Order"}
    assert schema["properties"]["speed"]["enum"] == ["slow", "fast"]


def test_parameter_without_schema_has_a_description(wbengine: Command) -> None:
    schema = wbengine("flow", "schema", f"{ORDERS}:unknown", "--json").json["inputs"]
    assert schema["properties"]["order"] == {
        "description": f"Parameter 'order' of '{ORDERS}.unknown': Unknown."
    }


def test_schema_contains_the_arguments_of_a_factory(wbengine: Command) -> None:
    schemas = wbengine("flow", "schema", f"{ORDERS}:reporting", "--json").json
    assert schemas["inputs"]["required"] == ["number"]
    assert schemas["arguments"]["title"] == f"{ORDERS}:reporting"
    assert schemas["arguments"]["properties"]["speed"]["default"] == "slow"
    shown = json.loads(wbengine("flow", "schema", f"{ORDERS}:reporting").out)
    assert shown == {"inputs": schemas["inputs"], "arguments": schemas["arguments"]}


def test_inputs_are_unknown_if_an_argument_is_required(wbengine: Command) -> None:
    schemas = wbengine("flow", "schema", f"{ORDERS}:billing", "--json").json
    assert schemas["inputs"] is None
    assert schemas["arguments"]["required"] == ["order"]
    jsonschema.Draft202012Validator.check_schema(schemas["arguments"])


# Inputs and arguments. ----------------------------------------------------------------------------


def stored_inputs(store: base.Backend, uuid: str) -> Any:
    with store.get_connection() as connection:
        detail = connection.get_flow_details(uuid)
    return next(atom.results for atom in detail if atom.name == models.INJECTOR)


def test_flow_run_converts_inputs(wbengine: Command, store_url: str) -> None:
    answer = wbengine("flow", "run", CHECKOUT, *INPUTS)
    assert answer.code == 0 and "Receipt(order=7" in answer.json["results"]["result"]


def test_flow_submit_stores_converted_inputs(wbengine: Command, store: base.Backend) -> None:
    uuid = wbengine("flow", "submit", CHECKOUT, *INPUTS, "--unique", "seven").out.strip()
    assert stored_inputs(store, uuid)["order"] == ORDER


def test_schedules_store_and_fire_converted_inputs(wbengine: Command, store: base.Backend) -> None:
    assert wbengine("schedule", "add", "daily", CHECKOUT, "--every", "1d", *INPUTS).code == 0
    assert Schedules(store).get("daily").schedule.inputs == {"order": ORDER}
    past = ("--from", "3d", "--max-flows", "1")
    uuid = wbengine("schedule", "backfill", "daily", *past).out.split()[1]
    assert stored_inputs(store, uuid)["order"] == ORDER


def test_retry_converts_replaced_inputs(wbengine: Command, store: base.Backend) -> None:
    failed = wbengine("flow", "run", f"{ORDERS}:failing", *INPUTS)
    assert failed.code == 1
    retry = ("flow", "retry", failed.json["uuid"], "--set")
    fault = "inputs['order'].lines[0].amount: expected Decimal, got 'abc'"
    assert fault in wbengine(*retry, 'order={"number": 7, "lines": [{"amount": "abc"}]}').error
    retried = wbengine(*retry, 'order={"number": 8, "lines": []}')
    assert retried.code == 0, retried.error
    assert stored_inputs(store, failed.json["uuid"])["order"] == Order(8, [])


ARGUMENTS = ("--arguments", '{"order": {"number": 7, "lines": []}, "speed": "fast"}')


def test_submitted_arguments_are_converted(wbengine: Command, store_url: str) -> None:
    answer = wbengine("flow", "submit", f"{ORDERS}:billing", *ARGUMENTS)
    assert answer.code == 0, answer.err


def test_arguments_of_a_run_are_converted_and_stored(
    wbengine: Command, store: base.Backend
) -> None:
    answer = wbengine("flow", "run", f"{ORDERS}:billing", "--json", *ARGUMENTS)
    assert (answer.code, "7 fast" in answer.out) == (0, True), answer
    with store.get_connection() as connection:
        detail = connection.get_flow_details(answer.json["uuid"])
    again = engines.flow_from_detail(detail, flows=[ORDERS])
    assert again.name == "billing"


# Signals. -----------------------------------------------------------------------------------------


def test_command_refuses_a_wrong_value_and_sends_a_valid_one(
    wbengine: Command, store_url: str
) -> None:
    handle = engines.submit(f"{ORDERS}:approved", backend=store_url)
    testing.run_submitted(store_url)
    send = ("flow", "signal", handle.id, "approved", "--value")
    wbengine.fails(2, "signals['approved'].by: 3 is not of type 'string'", *send, '{"by": 3}')
    assert wbengine(*send, '{"by": "ann"}').code == 0
    testing.run_submitted(store_url)
    handle.signal("approved")
    testing.run_submitted(store_url)
    assert handle.result(10)["result"][0].by == "ann"


def test_discarded_signal_is_in_the_log_of_the_flow(wbengine: Command, store_url: str) -> None:
    handle = engines.submit(f"{ORDERS}:approved", backend=store_url)
    handle.signal("approved", {"by": 3})
    testing.run_submitted(store_url)
    logs = wbengine("flow", "logs", handle.id).out
    assert "Signal 'approved' was discarded: signals['approved'].by: expected str, got 3" in logs
