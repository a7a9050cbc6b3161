"""Commands that are made from the table of operations."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli import commands
from tests.cli.conftest import ORDER, Command
from tests.support import fresh
from wbengine._cli import operation_command
from wbengine.operations import _names, _operation
from wbengine.operations import _operation as op

LOADED = """
import json, sys
from wbengine._cli import app
app.main(sys.argv[1:])
json.dump(sorted(sys.modules), sys.stderr)
"""


def test_names_and_summaries_of_sources_are_those_of_the_table() -> None:
    table = _operation.table()
    assert list(_names.names()) == [*table]
    assert {name: _names.summary(name) for name in table} == {
        name: each.summary for name, each in table.items()
    }


def test_every_operation_has_a_command() -> None:
    for operation in _operation.table().values():
        command = commands.ALL[operation.group, operation.verb]
        names = Counter(
            each for param in command.params for each in (f"name {param.name}", *param.opts)
        )
        assert {each for each, count in names.items() if count > 1} == set()


@pytest.mark.parametrize(
    ("words", "definitions"),
    [
        ("--help", ()),
        ("flow --help", ()),
        ("schedule --help", ()),
        ("tasks pause --help", ("tasks_pause",)),
        ("tasks pause shop.charge --persistence sqlite:///flows.db", ("tasks_pause",)),
    ],
)
def test_command_imports_only_its_own_definition(
    words: str, definitions: tuple[str, ...], tmp_path: Path
) -> None:
    variables = {name: value for name, value in os.environ.items() if "WBENGINE" not in name}
    variables |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    process = fresh.run(LOADED, *words.split(), cwd=tmp_path, env=variables)
    modules = json.loads(process.stderr.splitlines()[-1])
    prefix = f"{_names.__name__.rpartition('.')[0]}._definitions."
    assert [each for each in modules if each.startswith(prefix)] == [
        f"{prefix}{name}" for name in definitions
    ]
    assert "jsonschema" not in modules


# Parameters. --------------------------------------------------------------------------------------

_Shown = op.Shown

SCHEMAS: Mapping[str, tuple[Mapping[str, Any], op.Shown]] = {
    "text": ({"type": "string"}, _Shown()),
    "count": ({"type": "integer", "minimum": 1}, _Shown(metavar="N")),
    "ratio": ({"type": "number"}, _Shown()),
    "strict": ({"type": "boolean"}, _Shown()),
    "color": ({"enum": ["RED", "BLUE"]}, _Shown()),
    "seconds": ({"type": "number"}, _Shown(option="--for", is_duration=True)),
    "inputs": ({"type": "object"}, _Shown()),
    "tags": (
        {"type": "object", "propertyNames": {"type": "string"}},
        _Shown(option="--tag"),
    ),
    "names": ({"type": "array", "items": {"type": "string"}}, _Shown(option="--only")),
    "value": ({}, _Shown()),
}


def example(**defaults: Any) -> op.Operation:
    """Return an operation with a parameter of each kind."""
    parameters = {
        name: op.Parameter("A value.", schema, shown=shown)
        for name, (schema, shown) in SCHEMAS.items()
    }
    return op.Operation(
        "test run", "Test a command.", "", op.OPERATOR, parameters, frozenset(), defaults, {},
        False, None, op.Command(), None, None, lambda scope, **arguments: arguments,
    )  # fmt: skip


def parsed(operation: op.Operation, *words: str) -> dict[str, Any]:
    """Return the arguments of the operation that words of a command contain."""
    values: dict[str, Any] = {}

    def store(**given: Any) -> None:
        values.update(given)

    command: Any = store
    for option in operation_command.options_of(operation):
        command = option(command)
    click.command("run")(command).main([*words], standalone_mode=False)
    arguments, others = operation_command.split(operation, values)
    assert others == {}
    operation.check({**dict.fromkeys(operation.required, "x"), **arguments})
    return arguments


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ((), {}),
        (("--text", "-x"), {"text": "-x"}),
        (("--text=",), {"text": ""}),
        (("--text", "a=b"), {"text": "a=b"}),
        (("--count", "3"), {"count": 3}),
        (("--ratio", "-0.5"), {"ratio": -0.5}),
        (("--strict",), {"strict": True}),
        (("--color", "red"), {"color": "RED"}),
        (("--for", "2h"), {"seconds": 7200}),
        (("--inputs", '{"a": [1]}'), {"inputs": {"a": [1]}}),
        (("--tag", "a=b=c", "--tag", "d=e"), {"tags": {"a": "b=c", "d": "e"}}),
        (("--only", "a", "--only", "b"), {"names": ["a", "b"]}),
        (("--value", "[false, null]"), {"value": [False, None]}),
        (("--value", "0"), {"value": 0}),
        (("--value", "false"), {"value": False}),
    ],
)
def test_options_become_arguments(words: tuple[str, ...], arguments: dict[str, Any]) -> None:
    assert parsed(example(color="BLUE"), *words) == arguments


def test_flag_that_is_set_by_default_can_be_unset() -> None:
    operation = example(strict=True)
    assert parsed(operation) == {} and parsed(operation, "--no-strict") == {"strict": False}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "\udcff"), "must be valid Unicode"),
        (("--ratio", "nan"), "must be a finite number"),
        (("--count", "0"), "x>=1"),
        (("--value", "{"), "must be JSON"),
        (("--inputs", "[]"), "must be a JSON object"),
        (("--tag", "a=1", "--tag", "a=2"), "each key once"),
    ],
)
def test_invalid_value_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        parsed(example(), *words)


# Commands. ----------------------------------------------------------------------------------------


def test_results_are_json_with_the_json_option(wbengine: Command, store_url: str) -> None:
    wbengine("schedule", "add", "hourly", ORDER, "--every", "1h")
    for verb in ("pause", "resume", "run", "delete"):
        document = wbengine("schedule", verb, "hourly", "--json").json
        assert document["schema"] == f"wbengine/schedule-{verb}/1"
        assert document["schedule"] == "hourly"


def test_settings_and_variables_set_options(wbengine: Command, store_url: str) -> None:
    Path("wbengine.toml").write_text('[tasks.pause]\nfor = "2h"\nreason = "from the file"\n')
    by_file = wbengine("tasks", "pause", "shop.*", "--json").json
    assert by_file["reason"] == "from the file"
    assert by_file["until"] - by_file["since"] == pytest.approx(7200)
    wbengine.setenv("WBENGINE_TASKS_PAUSE_REASON", "from the variable")
    assert wbengine("tasks", "pause", "shop.*", "--json").json["reason"] == "from the variable"
    option = wbengine("tasks", "pause", "shop.*", "--reason", "-x", "--json")
    assert option.json["reason"] == "-x"
    wbengine.setenv("WBENGINE_TASKS_PAUSE_RAESON", "typo")
    assert wbengine("tasks", "pause", "shop.*").code == 78


def test_empty_object_is_a_value_of_a_signal() -> None:
    """It differs from a value that was not given."""
    assert parsed(_operation.load("flow signal"), "go", "--value", "{}") == {
        "signal": "go", "value": {},
    }  # fmt: skip
