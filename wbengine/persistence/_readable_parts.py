"""The parts of encrypted records that everybody may read.

Values of users are hidden, and so are messages and tracebacks of failures, reasons and notes.
Names, states, times, classes of exceptions and tags remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wbengine._security import sealing
from wbengine.persistence import _history, _trees, models
from wbengine.types import _tags
from wbengine.types._encoding import walk
from wbengine.types._encrypted import ENCRYPTED

__all__ = ["hidden", "readable"]

Tree = dict[str, Any]

_HIDDEN_TEXT: Final = repr(ENCRYPTED)

#: Keys of `meta` that everybody may read.
_READABLE_KEYS: Final = frozenset({
    _tags.GIVEN, _tags.CHANGED, models.ENGINE, models.NO_FACTORY, models.SUBMITTED,
    models.WAITS_FOR, models.PAUSED_BY, models.PERMIT_UNITS, models.DEADLINE_EXCEEDED,
    models.LOG_LEVEL, models.MADE_BY, models.META_INJECTED_MAC, models.OF_TASK, models.RETRY_AT,
    models.STARTS_AT, models.SETTLED, models.FIRST_START, models.DROPPED, models.PARENT,
    models.CHILD, models.FORKED_FROM, models.FORKS, models.AWAITS_REVERSION, models.INHERITED,
    models.RESULT_OWNER, models.REVERTING_PARENT, models.UNDO_UNTIL,
})  # fmt: skip
_READABLE_OF_FAILURES: Final = ("exc_type_names", "version")
_READABLE_REASONS: Final = (None, _history.PARKED, _history.BLOCKED)
#: The class of an exception at the start of `_history.one_line`.
_CLASS: Final = re.compile(r"[^\W\d]\w*(?=: |\Z)")


def readable(kind: str, tree: Mapping[str, Any]) -> Tree:
    """Return the readable part of a record: a tree with the same fields."""
    parts = _FIELDS[kind]
    shown = {
        name: value if value is None or name not in parts else parts[name](value)
        for name, value in tree.items()
    }
    if tree.get("name") == models.INJECTOR:
        shown["results"] = hidden(tree["results"])
    if kind == _trees.FLOW:
        shown["history"] = _changes(tree["history"], tree.get("history_errors", {}))
    return shown


def _value(packed: Any) -> Any:
    return None if packed is None else sealing.HIDDEN


def hidden(packed: Any) -> Any:
    """Return hidden values by name for a dict of values."""
    has_names = type(packed) is dict and walk.TAG not in packed
    return dict.fromkeys(packed, sealing.HIDDEN) if has_names else _value(packed)


def _retry_results(results: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [
        [_value(provided),
         {name: _failure(each) for name, each in failures.items()}]
        for provided, failures in results
    ]  # fmt: skip


def _failure(data: Mapping[str, Any]) -> Tree:
    shown = {"exception_str": _HIDDEN_TEXT, "traceback_str": "", "exc_args": []}
    return {**{name: data[name] for name in _READABLE_OF_FAILURES if name in data}, **shown}


def _error(text: str | None) -> str | None:
    """Return the class in an error of one line."""
    found = None if text is None else _CLASS.match(text)
    return text if text is None else found[0] if found else _HIDDEN_TEXT


def _changes(history: Sequence[Sequence[Any]], errors: Mapping[str, str]) -> list[list[Any]]:
    return [
        [state, at, why if why in _READABLE_REASONS else errors.get(str(n), _HIDDEN_TEXT)]
        for n, (state, at, why) in enumerate(history)
    ]


def _attempts(past: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[*attempt[:7], _error(attempt[7]), *attempt[8:]] for attempt in past]


def _outcome(outcome: Sequence[Any]) -> list[Any]:
    state, error = outcome
    return [state, _error(error)]


def _meta(meta: Mapping[str, Any]) -> Tree:
    readable: Tree = {}
    for key, value in meta.items():
        if key in _READABLE_KEYS:
            readable[key] = value
        elif key in _KEYS:
            readable[key] = _KEYS[key](value)
    return readable


def _step(note: Mapping[str, Any]) -> Tree:
    kept = {name: value for name, value in note.items() if name not in ("arguments", "text")}
    return {**kept, "digest": ""}


def _workflow(content: Mapping[str, Any]) -> Tree:
    published = content.get(models.PUBLISHED)
    readable = {"attempt": content["attempt"]} if "attempt" in content else {}
    return {**readable, models.PUBLISHED: hidden(published)} if published else readable


def _continued(content: Mapping[str, Any]) -> Tree:
    readable = {name: content[name] for name in ("number", "attempt", "at") if name in content}
    return {**readable, "inputs": hidden(content.get("inputs"))}


def _factory(note: Any) -> Any:
    return {"name": note["name"]} if isinstance(note, dict) and "name" in note else sealing.HIDDEN


def _request(content: Any) -> Any:
    return {**content, "reason": None} if isinstance(content, dict) else sealing.HIDDEN


#: Functions that return the readable part of a key of `meta`, and of a field of a record.
_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    models.FACTORY: _factory,
    models.CANCELLED: _request,
    models.UNDONE: _request,
    models.STEP: _step,
    models.WORKFLOW: _workflow,
    models.CONTINUED: _continued,
    models.META_INJECTED: hidden,
}
_OF_ATOMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "results": _value,
    "failure": _failure,
    "revert_results": _value,
    "revert_failure": _failure,
}
_OF_TASKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **_OF_ATOMS,
    "meta": _meta,
    "progress_details": _value,
    "past": _attempts,
    "came_to": _outcome,
}
_FIELDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    _trees.BOOK: {"meta": _meta},
    _trees.FLOW: {"meta": _meta},
    _trees.TASK: _OF_TASKS,
    _trees.RETRY: {**_OF_TASKS, "results": _retry_results},
    _trees.ITEM: {**_OF_ATOMS, "value": _value},
}
