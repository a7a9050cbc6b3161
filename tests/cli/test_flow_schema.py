"""`wbengine flow schema`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import jsonschema

from tests.cli.conftest import Command
from wbengine import engines
from wbengine.persistence import backends

ORDERS = "tests.support.typed_orders"


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


def test_schema_of_an_unknown_factory_is_a_usage_error(wbengine: Command) -> None:
    answer = wbengine("flow", "schema", f"{ORDERS}:chekout")
    assert answer.code == 2 and "did you mean 'checkout'" in answer.error


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


def test_submitted_arguments_are_converted(wbengine: Command, home: Path) -> None:
    store = "--persistence", f"sqlite:///{home}/flows.db"
    words = "flow", "submit", f"{ORDERS}:billing", *store, "--arguments"
    wrong = wbengine(*words, '{"order": {"number": "7", "lines": []}}')
    assert wrong.code != 0
    assert "arguments['order'].number: expected int, got '7'" in wrong.err
    assert wbengine("flow", "list", *store, "--json").json["flows"] == []
    answer = wbengine(*words, '{"order": {"number": 7, "lines": []}, "speed": "fast"}')
    assert answer.code == 0, answer.err


def test_arguments_of_a_run_are_converted_and_stored(wbengine: Command, home: Path) -> None:
    store = "--persistence", f"sqlite:///{home}/flows.db"
    words = "flow", "run", f"{ORDERS}:billing", *store, "--json", "--arguments"
    wrong = wbengine(*words, '{"order": {"number": "7", "lines": []}}')
    assert wrong.code != 0
    assert "arguments['order'].number: expected int, got '7'" in wrong.err
    assert wbengine("flow", "list", *store, "--json").json["flows"] == []
    answer = wbengine(*words, '{"order": {"number": 7, "lines": []}, "speed": "fast"}')
    assert (answer.code, "7 fast" in answer.out) == (0, True), answer
    with (
        backends.backend(store[1]) as backend,
        contextlib.closing(backend.get_connection()) as connection,
    ):
        detail = connection.get_flow_details(answer.json["uuid"])
    again = engines.flow_from_detail(detail, flows=[ORDERS])
    assert again.name == "billing"


def test_run_of_a_flow_with_arguments_is_a_usage_error(wbengine: Command, home: Path) -> None:
    store = "--persistence", f"sqlite:///{home}/flows.db"
    answer = wbengine("flow", "run", f"{ORDERS}:totals", *store, "--arguments", '{"a": 1}')
    assert answer.code != 0
    assert wbengine("flow", "list", *store, "--json").json["flows"] == []
