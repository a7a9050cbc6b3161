"""The text of failures and their members, in the format in which Python prints exceptions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

#: Maximum numbers of printed members and levels of groups, as in `traceback.TracebackException`.
_MAX_WIDTH: Final = 15
_MAX_DEPTH: Final = 10

_CAUSE: Final = "The above exception was the direct cause of the following exception:"
_CONTEXT: Final = "During handling of the above exception, another exception occurred:"

#: Returns the entries of the traceback of a failure, and its type, message and notes.
Describe = Callable[[Any], tuple[str, str]]


def described(failure: Any) -> tuple[str, str]:
    """Return the entries of the traceback of a `Failure`, and its type, message and notes."""
    return failure.traceback_str, with_notes(
        next(iter(failure), "Exception"), failure.exception_str, failure.notes
    )


def with_notes(kind: str, message: str, notes: tuple[str, ...]) -> str:
    return "\n".join((f"{kind}: {message}" if message else kind, *notes))


def text_of(failure: Any, describe: Describe = described) -> str:
    """Return the text of a failure or view with its causes and members, the first cause first."""
    return "\n".join(_chain(failure, describe, 0))


def members_text(failure: Any, describe: Describe = described) -> str:
    """Return the text of the members of a group, '' for other failures."""
    return "\n".join(_members(failure, describe, 1)) if failure.members else ""


def _chain(failure: Any, describe: Describe, depth: int) -> Generator[str, None, bool]:
    """Yield lines. Return True if they contain a group: its last line also ends the outer group."""
    has_group = False
    for index, link in enumerate(reversed((failure, *failure.causes))):
        margin = _margin(depth)
        if index:
            message = _CONTEXT if link.has_implicit_cause else _CAUSE
            yield from (margin, f"{margin}{message}", margin)
        entries, text = describe(link)
        if link.members and depth > _MAX_DEPTH:
            yield f"{margin}... (max_group_depth is {_MAX_DEPTH})"
            continue
        head = f"{margin}Traceback (most recent call last):"
        if link.members:
            corner = "  + " if depth == 0 else margin
            margin = _margin(depth or 1)
            head = f"{corner}Exception Group Traceback (most recent call last):"
        if entries:
            yield head
            yield from (margin + line for line in entries.rstrip("\n").split("\n"))
        yield from (margin + line for line in text.split("\n"))
        if link.members:
            yield from _members(link, describe, depth or 1)
            has_group = True
    return has_group


def _members(failure: Any, describe: Describe, depth: int) -> Iterator[str]:
    edge, inner = "  " * depth, _margin(depth + 1)
    is_closed = False
    for number, member in enumerate(failure.members[:_MAX_WIDTH], 1):
        yield f"{edge}{'+-' if number == 1 else '  '}+---------------- {number} ----------------"
        is_closed = yield from _chain(member, describe, depth + 1)
    rest = len(failure.members) - _MAX_WIDTH
    if rest > 0:
        yield f"{edge}  +---------------- ... ----------------"
        yield f"{inner}and {rest} more exception{'s' if rest > 1 else ''}"
    if rest > 0 or not is_closed:
        yield f"{edge}  +------------------------------------"


def _margin(depth: int) -> str:
    return "  " * depth + "| " if depth else ""
