"""The help of all commands: summaries, examples, defaults, variables and aliases."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.cli.commands import ALL
from tests.cli.conftest import Command
from wbengine._cli import app, base
from wbengine._cli import context as contexts

#: First words of summaries.
IMPERATIVES = {
    "Add", "Assign", "Cancel", "Change", "Check", "Copy", "Create", "Delete", "Draw", "Export",
    "Find", "Fire", "Import", "List", "Manage", "Pause", "Ping", "Print", "Record", "Replay",
    "Resume", "Revert", "Revoke", "Rotate", "Run", "Send", "Serve", "Show", "Start", "Stop",
    "Submit", "Suspend", "Update", "Watch",
}  # fmt: skip
COMMANDS = {path: each for path, each in ALL.items() if not isinstance(each, click.Group)}


def summary_of(command: click.Command) -> str:
    return (command.help or "").strip().partition("\n")[0]


def examples_of(command: click.Command) -> list[str]:
    _, _, block = (command.help or "").partition("\b\n")
    title, _, lines = block.partition("\n")
    assert title.strip() in ("Example:", "Examples:")
    return [line.strip() for line in lines.splitlines() if line.strip()]


def parse(words: list[str]) -> click.Context:
    """Parse a command line without running the command."""
    context = click.Context(app.root, info_name="wbengine", obj=contexts.Context(app.COMMANDS))
    group: click.Group = app.root
    while True:
        name, command, words = group.resolve_command(context, words)
        assert command is not None and name is not None
        if not isinstance(command, click.Group):
            return command.make_context(name, words, context)
        group, context = command, click.Context(command, context, info_name=name)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_summary_is_one_imperative_sentence(path: tuple[str, ...]) -> None:
    summary = summary_of(ALL[path])
    assert re.fullmatch(r"[A-Z][^.]*\.", summary), summary
    assert re.split(r"\W", summary)[0] in IMPERATIVES


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_list_of_commands_has_the_same_summary(path: tuple[str, ...]) -> None:
    parent = app.root if len(path) == 1 else ALL[path[:-1]]
    assert isinstance(parent, base.Group)
    lazy = parent.lazy.get(path[-1])
    assert lazy is None or lazy.help == summary_of(ALL[path])


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_can_be_parsed(path: tuple[str, ...], home: Path) -> None:
    (home / "order.json").touch()  # `flow import` opens its file
    examples = examples_of(COMMANDS[path])
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])
        assert words[0] == "wbengine"
        with parse(words[1:]) as context:
            assert context.command is COMMANDS[path]


def test_wrong_example_cannot_be_parsed() -> None:
    with pytest.raises(click.UsageError):
        parse(["flow", "list", "--no-such-option"])


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_defaults_are_shown(path: tuple[str, ...], wbengine: Command) -> None:
    rows = re.split(r"\n  (?=-)", wbengine(*path, "--help").out)
    for _, option in base.own_options(COMMANDS[path]):
        if option.to_info_dict()["default"] and not option.is_flag and not option.multiple:
            (row,) = (row for row in rows if row.startswith(", ".join(option.opts)))
            assert "[default:" in row


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        ("flow run module:factory", "WBENGINE_FLOW_RUN_INPUTS"),
        ("flow list", "WBENGINE_FLOW_LIST_STATE"),
        ("status", "WBENGINE_STATUS_MIN_WORKERS"),
        ("keys rotate", "WBENGINE_KEYS_ROTATE_IN"),
    ],
)
def test_variable_has_the_name_of_its_option(words: str, variable: str, wbengine: Command) -> None:
    assert f"${variable}" in wbengine(*words.split(), "--help").out
    wbengine.setenv(variable, "!")
    wbengine.fails(78, f": error: ${variable}", *words.split())


@pytest.mark.parametrize("alias", base.ALIASES)
def test_alias_calls_the_command(alias: str, wbengine: Command) -> None:
    paths = [path for path in COMMANDS if path[-1] == base.ALIASES[alias]]
    assert paths
    for *group, name in paths:
        answer = wbengine(*group, alias, "--help")
        assert answer.code == 0
        assert answer.out == wbengine(*group, name, "--help").out
        assert f"\n  {name}, {alias} " in wbengine(*group, "--help").out
