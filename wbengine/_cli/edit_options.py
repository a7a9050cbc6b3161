"""Options that replace inputs and results before flows run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import click

from wbengine._cli import errors, params
from wbengine.persistence._edits import Edits

__all__ = ["FlowEdits", "edit_options", "edits_of", "read_edits"]

_KEYS: Final = ("flow", "set", "set_result")


class FlowEdits(NamedTuple):
    """The edits of one flow, and the number of their line in the file."""

    line: int
    flow: str
    edits: Edits


def edit_options(function: Any) -> Any:
    """Add the options --set, --set-result and --edits."""
    for option in (
        click.option("--edits", "edits_file", type=click.Path(allow_dash=True), metavar="FILE",
            help="Edit the flows of this file (-: standard input), which contains one JSON object"
            ' for each line: {"flow": ID, "set": {NAME: VALUE}, "set_result": {TASK: VALUE}}.'
            " Without IDs, filters or --all, only these flows are retried."),
        click.option("--set-result", "results", type=params.ASSIGNMENT, multiple=True,
            metavar="TASK=JSON|@FILE", callback=params.once,
            help="Replace the result of this task, in a flow that failed without a reversion"
            " (repeatable)."),
        click.option("--set", "inputs", type=params.ASSIGNMENT, multiple=True,
            metavar="NAME=JSON|@FILE", callback=params.once,
            help="Replace this input of the flow (repeatable)."),
    ):  # fmt: skip
        function = option(function)
    return function


def edits_of(inputs: dict[str, Any], results: dict[str, Any]) -> Edits | None:
    edits = Edits(inputs, results)
    return edits if edits else None


def read_edits(path: str) -> Iterator[FlowEdits]:
    """Yield the edits in a file of JSON Lines. Empty lines are ignored.

    :raises Failed: if the file cannot be read, a line is invalid, or two lines edit one flow. The
        message does not contain values.
    """
    with errors.failing(errors.USAGE, ValueError):
        text = params.file_text(path).removeprefix("\ufeff")  # a byte order mark
    for number, line in enumerate(text.split("\n"), 1):  # not at U+2028, which JSON texts contain
        if line.strip():
            yield _parsed(line, number, path)


def _parsed(line: str, number: int, path: str) -> FlowEdits:
    with errors.failing(errors.USAGE, ValueError, RecursionError, where=f"{path}, line {number}"):
        content = json.loads(line, object_pairs_hook=_unique)
    values = content if isinstance(content, dict) else {}
    inputs, results = values.get("set", {}), values.get("set_result", {})
    is_valid = isinstance(inputs, dict) and isinstance(results, dict)
    if not isinstance(values.get("flow"), str) or not is_valid or not {*_KEYS} >= {*values}:
        raise errors.Failed(
            f"{path}, line {number}: must be a JSON object with 'flow' (an id), and 'set' and"
            " 'set_result' (objects) if needed",
            errors.USAGE,
        )
    return FlowEdits(number, values["flow"], Edits(inputs, results))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object contains a name twice")
    return values
