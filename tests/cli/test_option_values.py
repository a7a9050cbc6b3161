"""Unknown values of options are refused with the nearest valid one, in every command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli import commands
from tests.cli.conftest import Command
from wbengine._cli import base, common_options, config, params, settings_schema
from wbengine.jobs.base import JobPriority

#: If a wrong value were accepted, some of the commands would run without end.
pytestmark = pytest.mark.timeout(60)

USAGE, BAD_CONFIG = 2, 78

LEAVES = {
    path: command for path, command in commands.ALL.items() if not isinstance(command, click.Group)
}
#: Values of required parameters by name.
REQUIRED = {
    "bulk": commands.UNKNOWN,
    "factory": "tests.cli.shop:order",
    "flow": commands.UNKNOWN,
    "ids": commands.UNKNOWN,
    "schedule": "name",
    "signal": "approved",
    "task": "reserve",
    "name": "name",
    "names": "name",
    "pattern": "shop.charge",
    "key": "ci",
    "old": "memory://",
    "new": "memory://",
    "file": "-",
    "path": "keys.json",
    "shell": "bash",
    "modules": "tests.cli.shop",
    "older_than": "1d",
    "from_code": "v43",
    "to_code": "v42",
    "from_time": "1d",
}

#: Setting, other options, wrong value and nearest valid value.
SETTINGS: list[tuple[str, tuple[str, ...], str, str]] = [
    ("url", (), "redsi://host/0", "redis"),
    ("url", (), "redis://host/0?prefx=x", "prefix"),
    ("transport", (), "memmory", "memory"),
    ("transport", (), "mongdb", "mongodb"),
    ("transport_options", ("--url", "memory://x"), "poling_interval=1", "polling_interval"),
    ("transport_options", ("--url", "amqp://h"), "hartbeat=1", "heartbeat"),
    ("transport_options", (), "inotfy=1", "inotify"),
    ("ledger", (), "sqlit:////x.db", "sqlite"),
    ("ledger", (), "non", "none"),
    ("persistence", (), "sqlit:////x.db", "sqlite"),
    ("persistence", (), "sqlite:////x.db?max_retris=1", "max_retries"),
    ("board", (), "redsi://host", "redis"),
    ("board", (), "redis://host?namspace=x", "namespace"),
    ("include", (), "testts.cli", "tests"),
    ("flows", (), "testts", "tests"),
    ("flows", (), "tests.cli.shop:odrer", "order"),
    ("color", (), "alwys", "always"),
    ("log_level", (), "wrning", "warning"),
    ("log_format", (), "jsn", "json"),
]
#: Settings that accept any value, or that no option or variable sets.
FREE_SETTINGS = {
    "databases",
    "exchange",
    "keys",
    "notify",
    "oidc",
    "payloads",
    "retention",
    "schedules",
    "timeout",
}

#: Options of commands that accept any text, or values that only a store, broker or server can
#: check.
FREE = {
    "address", "after", "app", "book", "celery_accept", "celery_broker", "celery_config",
    "celery_name", "celery_queue", "celery_result_backend", "celery_task", "cron", "cursor",
    "error", "code", "queues", "queue", "fair_key", "debounce",
    "exception_handler", "flow_id", "from_code", "to_code", "code_version",
    "host", "name", "names", "reason", "redis", "tasks", "time_zone", "token", "topic", "unique",
    "postgresql", "url_prefix", "worker_role", "worker", "task", "flow", "parent", "workflow", "at",
}  # fmt: skip
#: Commands with values that are checked after the start, and the nearest valid values.
CHECKED_LATER: list[tuple[tuple[str, ...], str]] = [
    (("worker", "t", "--tasks", "testts.cli"), "tests"),
    (("worker", "t", "--tasks", "tests.cli.shop:Halff"), "Half"),
    (("worker", "t", "--tasks", "tests.cli.shop", "--exception-handler", "testts:x"), "tests"),
    (
        ("worker", "--tasks", "tests.cli.shop", "--celery-queue", "q", "--celery-broker",
         "redis://127.0.0.1:1/0", "--celery-accept", "json,ymal"),
        "yaml",
    ),
    (("dev", "testts"), "tests"),
    (("limits", "--redis", "redsi://host"), "redis"),
    (("limits", "set", "shop", "5/s", "--redis", "redsi://host"), "redis"),
    (("flow", "run", "tests.cli.shop:odrer"), "order"),
    (("flow", "submit", "tests.cli.shop:odrer"), "order"),
    (("graph", "testts:order"), "tests"),
    (("schedule", "add", "x", "tests.cli.shop:odrer", "--every", "3m"), "order"),
    (
        ("schedule", "add", "x", "tests.cli.shop:order", "--cron", "0 0 * * *", "--time-zone",
         "Europe/Berln"),
        "Europe/Berlin",
    ),
]  # fmt: skip


def limited(param: click.Parameter) -> list[tuple[str, str]]:
    """Return wrong values of an option, each with the nearest valid one."""
    if isinstance(param.type, params.Choice):
        return [(misspelled(word), word) for word in param.type.choices]
    if param.type is params.ENGINE:
        return [
            ("paralell", "parallel"),
            ("parallel://?max_workrs=4", "max_workers"),
            ("workers://?on_worker_lost=fial", "fail"),
            ("serial://?durability=eech", "each"),
        ]
    return []


def misspelled(word: str) -> str:
    return f"{word[0]}x{word[1:]}"


def required(command: click.Command, without: str | None = None) -> Iterator[str]:
    """Yield the required words of a command."""
    for param in command.params:
        if param.required and param.name != without:
            if isinstance(param, click.Option):
                yield param.opts[0]
            yield REQUIRED.get(str(param.name), "text")


#: All options and arguments of commands that have limited sets of values.
CASES = [
    pytest.param(path, param, value, near, id=f"{' '.join(path)} {value}")
    for path, command in LEAVES.items()
    for param in command.params
    for value, near in limited(param)
]
#: One case for each option.
OF_OPTIONS = list(
    {case.values[1]: case for case in CASES if "--" in case.values[1].opts[-1]}.values()
)


def refused(answer: Any, near: str, code: int = USAGE) -> None:
    assert (answer.code, answer.out) == (code, ""), answer
    assert f"did you mean '{near}'?" in answer.error


@pytest.mark.parametrize(("path", "param", "value", "near"), CASES)
def test_unknown_option_value_is_refused_with_a_suggestion(
    path: tuple[str, ...], param: click.Parameter, value: str, near: str, wbengine: Command
) -> None:
    given = [param.opts[0], value] if isinstance(param, click.Option) else [value]
    others = required(LEAVES[path], without=param.name)
    refused(wbengine(*path, *given, *others), near)


@pytest.mark.parametrize(("path", "param", "value", "near"), OF_OPTIONS)
def test_unknown_option_value_in_environment_or_file_is_refused(
    path: tuple[str, ...],
    param: click.Option,
    value: str,
    near: str,
    wbengine: Command,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = list(required(LEAVES[path]))
    key = param.opts[-1].lstrip("-").replace("-", "_")
    variable = f"WBENGINE_{'_'.join(path)}_{key}".upper()
    with monkeypatch.context() as context:
        context.setenv(variable, value)
        answer = wbengine(*path, *others)
        refused(answer, near, BAD_CONFIG)
        assert f"error: ${variable}" in answer.error
    table = json.dumps([value] if param.multiple else value)
    (home / "wbengine.toml").write_text(f"[{'.'.join(path)}]\n{key} = {table}\n")
    refused(wbengine(*path, *others), near, BAD_CONFIG)


@pytest.mark.parametrize("path", list(LEAVES), ids=" ".join)
def test_unknown_setting_value_is_refused_in_every_command(
    path: tuple[str, ...], wbengine: Command
) -> None:
    own = {spelling for param in LEAVES[path].params for spelling in param.opts}
    one_each = {name: (name, *fields) for name, *fields in SETTINGS}
    for name, others, value, near in one_each.values():
        option = settings_schema.SETTINGS[name].spellings[-1]
        if option not in own:  # else the command has its own
            words = (option, value, *others, *required(LEAVES[path]))
            answer = wbengine(*path, *words)
            refused(answer, near)
            assert f"{option}: " in answer.error or f"{option} must " in answer.error


@pytest.mark.parametrize(("name", "others", "value", "near"), SETTINGS)
def test_unknown_setting_value_in_environment_or_file_is_refused(
    name: str,
    others: tuple[str, ...],
    value: str,
    near: str,
    wbengine: Command,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = settings_schema.SCHEMA["properties"][name].get("type")
    typed: Any = value
    if kind == "array":
        typed = [value]
    elif kind == "object":
        typed = dict([value.split("=")])
    with monkeypatch.context() as context:
        text = json.dumps(typed) if kind == "object" else value
        context.setenv(config.VARIABLES[name], text)
        answer = wbengine("flow", "list", *others)
        refused(answer, near, BAD_CONFIG)
        assert f"${config.VARIABLES[name]}" in answer.error
    written = "{" + "=".join(value.split("=")) + "}" if kind == "object" else json.dumps(typed)
    (home / "wbengine.toml").write_text(f"{name} = {written}\n")
    answer = wbengine("flow", "list", *others)
    refused(answer, near, BAD_CONFIG)
    assert f"wbengine.toml: {name}" in answer.error


def test_valid_options_of_an_unused_broker_have_no_effect(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the broker need not be installed."""
    (home / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "runtime"))
    missing: Any = None
    for name in ("redis", "wbengine.transports._redis.redis_broker"):
        monkeypatch.setitem(sys.modules, name, missing)
    monkeypatch.delattr("wbengine.transports._redis.redis_broker", raising=False)
    for words in (
        ("--transport-option", "inotify=false"),
        ("--transport", "filesystem"),
        ("--transport", "my.module:Transport"),
        ("--url", "redis://host/0?prefix=orders"),
        ("--url", "amqp://one;amqp://two?heartbeat=3"),
        ("--board", "redis://host/0?namespace=orders"),
        ("--ledger", "none"),
    ):
        answer = wbengine("flow", "list", *words)
        assert answer.code == 0, answer
    assert list((home / "runtime").iterdir()) == []


@pytest.mark.parametrize(("words", "near"), CHECKED_LATER, ids=lambda each: " ".join(each))
def test_unknown_value_that_is_checked_during_the_run_is_refused(
    words: tuple[str, ...], near: str, wbengine: Command
) -> None:
    refused(wbengine(*words, "--url", "memory://x"), near)


def test_every_option_is_limited_or_listed_as_free() -> None:
    """A new option fails here until it is limited or listed as free."""
    for path, command in LEAVES.items():
        for param in command.params:
            texts = type(param.type) in (click.types.StringParamType, click.Choice)
            if texts and isinstance(param, click.Option):
                assert param.name in FREE, f"{' '.join(path)} {param.opts[0]}"
    flags = {
        name
        for name, setting in settings_schema.SETTINGS.items()
        if setting.schema.get("type") == "boolean"
    }
    assert {name for name, *_ in SETTINGS} | FREE_SETTINGS | flags == set(settings_schema.SETTINGS)
    for option in base.common_options():
        assert type(option.type) is not click.Choice


def test_priorities_equal_those_of_jobs() -> None:
    assert list(common_options.PRIORITIES) == [each.value for each in JobPriority]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("WBENGINE_PERSITENCE", "WBENGINE_PERSISTENCE"),
        ("WBENGINE_KEY", "WBENGINE_KEYS"),
        ("WBENGINE_BROKER", "WBENGINE_URL"),
        ("WBENGINE_LEDGER_FIEL", "WBENGINE_LEDGER_FILE"),
        ("WBENGINE_FLOW_RUN_ENGIN", "WBENGINE_FLOW_RUN_ENGINE"),
        ("WBENGINE_FLOW_RUN_PERSISTENCE", "WBENGINE_PERSISTENCE"),
    ],
)
def test_misspelled_variable_is_refused(variable: str, meant: str, wbengine: Command) -> None:
    wbengine.setenv(variable, "value")
    answer = wbengine("flow", "run", "tests.cli.shop:order")
    assert (answer.code, answer.out) == (BAD_CONFIG, "")
    assert answer.error.endswith(f"unknown variable ${variable} (did you mean ${meant}?)")


def test_variables_of_all_commands_and_of_kubernetes_are_accepted(
    wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, command in LEAVES.items():
        for key, _ in base.own_options(command):
            monkeypatch.setenv(f"WBENGINE_{'_'.join(path)}_{key}".upper(), "x")
    for name in list(os.environ):
        if name.startswith("WBENGINE_FLOW_LIST_"):
            monkeypatch.delenv(name)
    for service in ("WBENGINE", "WBENGINE_FLOW", "WBENGINE_WORKER"):
        for end in ("PORT", "PORT_8585_TCP", "PORT_8585_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT"):
            monkeypatch.setenv(f"{service}_{end}", "tcp://10.0.0.1:8585")
    monkeypatch.setenv("WBENGINE_COLUMNS", "80")
    answer = wbengine("flow", "list", "--json")
    assert answer.code == 0, answer
