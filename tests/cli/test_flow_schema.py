"""`wbengine flow schema`."""

from __future__ import annotations

import json

import jsonschema

from tests.cli.conftest import Command

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
