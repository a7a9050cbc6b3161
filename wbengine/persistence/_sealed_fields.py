"""Encryption of the secret parts of records, as trees of `_trees`.

If the keys encrypt (see `_security.sealing`), the field `sealed` of a record contains its secret
fields, encrypted together, and the fields themselves contain what everybody may read. Secret are
values of users, messages and tracebacks of failures, and reasons and notes of users. Names, states,
times, classes of exceptions and tags are not.

A process without keys reads the readable part, which cannot be stored again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine._security import sealing
from wbengine.persistence import _history, _trees, models
from wbengine.types import _tags
from wbengine.types._encoding import walk
from wbengine.types._encrypted import ENCRYPTED, NO_KEYS

__all__ = [
    "SEALED", "check_opened", "opened", "opened_details", "opened_parts", "place_of_arguments",
    "place_of_details", "place_of_edits", "place_of_inputs", "place_of_log", "place_of_signal",
    "place_of_trouble", "sealed", "sealed_details", "sealed_parts",
]  # fmt: skip

#: Field of a tree with the encrypted fields.
SEALED: Final = "sealed"
#: Key in the `meta` of a flow that this process has not decrypted.
_MARK: Final = "encrypted"

_HIDDEN_TEXT: Final = repr(ENCRYPTED)

#: Keys of `meta` that everybody may read.
_READABLE_KEYS: Final = frozenset({
    _tags.GIVEN, _tags.CHANGED, models.ENGINE, models.NO_FACTORY, models.SUBMITTED,
    models.WAITS_FOR, models.PAUSED_BY, models.PERMIT_UNITS, models.DEADLINE_EXCEEDED,
    models.LOG_LEVEL, models.MADE_BY, models.META_INJECTED_MAC, models.OF_TASK, models.RETRY_AT,
    models.STARTS_AT, models.SETTLED,
})  # fmt: skip
_READABLE_OF_FAILURES: Final = ("exc_type_names", "version")
_READABLE_REASONS: Final = (None, _history.PARKED, _history.BLOCKED)
#: The class of an exception at the start of `_history.one_line`.
_CLASS: Final = re.compile(r"[^\W\d]\w*(?=: |\Z)")

Tree = dict[str, Any]


def sealed(kind: str, tree: Mapping[str, Any], *place: str) -> Mapping[str, Any]:
    """Return the tree of a record with encrypted fields, or unchanged if nothing is encrypted.

    :param kind: the kind of the record (see `_trees`).
    :param place: identifies the record.
    :raises NotTrusted, InvalidFormat: as `sealing.sealed` does.
    """
    if not sealing.is_on():
        return tree
    readable, secret = dict(tree), Tree()
    for name, readable_part in _FIELDS[kind].items():
        value = tree.get(name)
        if value is not None:
            readable[name] = readable_part(value)
            if readable[name] != value:
                secret[name] = value
    if tree.get("name") == models.INJECTOR:
        readable["results"] = _hidden(tree["results"])
    if secret:
        readable[SEALED] = sealing.sealed_tag(_text(secret), *place)
    return readable


def sealed_parts(data: Tree, names: Iterable[str], *place: str) -> Tree:
    """Return a dict in which the values of these keys are encrypted, if something is."""
    secret = {name: data[name] for name in names if data.get(name)}
    tag = sealing.sealed_tag(_text(secret), *place) if secret else None
    if tag is None:
        return data
    return {**data, **{name: _hidden(value) for name, value in secret.items()}, SEALED: tag}


def opened(tree: Tree, *place: str) -> Tree:
    """Return the tree that `sealed` received. In a process without keys, secrets are hidden.

    Anything but a dict is returned unchanged.

    :raises NotTrusted: if this process has other keys, or the record was damaged or moved.
    """
    tag = tree.pop(SEALED, None) if isinstance(tree, dict) else None
    text = None if tag is None else sealing.opened_tag(tag, *place)
    return tree if text is None else {**tree, **json.loads(text)}


def opened_parts(data: Mapping[str, Any], *place: str) -> Tree:
    """Return the dict that `sealed_parts` received.

    :raises NotTrusted: if it is encrypted, and this process has no keys or other ones.
    """
    if SEALED in data and sealing.ring() is None:
        raise exceptions.NotTrusted(f"{' '.join(place)} {NO_KEYS}")
    return opened(dict(data), *place)


def sealed_details(packed: Tree, job_uuid: str) -> Tree:
    """Return packed details of a job, encrypted except for the uuid of its flow."""
    names = [name for name in packed if name != "flow_uuid"]
    return sealed_parts(packed, names, *place_of_details(job_uuid))


def opened_details(packed: Any, job_uuid: str) -> Any:
    """Return the packed details that `sealed_details` received; damaged ones unchanged.

    :raises NotTrusted: as `opened_parts` does.
    """
    is_dict = isinstance(packed, dict)
    return opened_parts(packed, *place_of_details(job_uuid)) if is_dict else packed


def check_opened(flow: models.FlowDetail) -> None:
    """Check that this process could decrypt a flow, before it uses values of the flow.

    :raises StorageFailure: if it could not.
    """
    if flow.meta_value(_MARK) is ENCRYPTED:
        raise exceptions.StorageFailure(f"Flow {flow.uuid} {NO_KEYS}")


def _text(data: Tree) -> str:
    return json.dumps(data, separators=(",", ":"))


def _value(packed: Any) -> Any:
    return None if packed is None else sealing.HIDDEN


def _hidden(packed: Any) -> Any:
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
    hidden = {"exception_str": _HIDDEN_TEXT, "traceback_str": "", "exc_args": []}
    return {**{name: data[name] for name in _READABLE_OF_FAILURES if name in data}, **hidden}


def _error(text: str | None) -> str | None:
    """Return the class in an error of one line."""
    found = None if text is None else _CLASS.match(text)
    return text if text is None else found[0] if found else _HIDDEN_TEXT


def _changes(history: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [_change(*change) for change in history]


def _change(state: str, at: float, why: str | None, errors: str | None = None) -> list[Any]:
    readable = why if why in _READABLE_REASONS else errors or _HIDDEN_TEXT
    return [state, at, readable, errors]


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


def _meta_of_flow(meta: Mapping[str, Any]) -> Tree:
    return {**_meta(meta), _MARK: sealing.HIDDEN}


def _step(note: Mapping[str, Any]) -> Tree:
    kept = {name: value for name, value in note.items() if name not in ("arguments", "text")}
    return {**kept, "digest": ""}


def _workflow(content: Mapping[str, Any]) -> Tree:
    published = content.get(models.PUBLISHED)
    readable = {"attempt": content["attempt"]} if "attempt" in content else {}
    return {**readable, models.PUBLISHED: _hidden(published)} if published else readable


def _factory(note: Any) -> Any:
    return {"name": note["name"]} if isinstance(note, dict) and "name" in note else sealing.HIDDEN


def _cancellation(content: Any) -> Any:
    return {**content, "reason": None} if isinstance(content, dict) else sealing.HIDDEN


# Places of texts, to which their encryption is bound.


def place_of_log(atom_uuid: str, attempt: int) -> tuple[str, ...]:
    return "log", atom_uuid, str(attempt)


def place_of_signal(flow_uuid: str, stored_name: str) -> tuple[str, ...]:
    return "signal", flow_uuid, stored_name


def place_of_edits(flow_uuid: str) -> tuple[str, ...]:
    return "edits", flow_uuid


def place_of_arguments(bulk_uuid: str, flow_uuid: str = "") -> tuple[str, ...]:
    return "arguments of operation", bulk_uuid, flow_uuid


def place_of_details(job_uuid: str) -> tuple[str, ...]:
    return "details of job", job_uuid


def place_of_inputs(schedule: str) -> tuple[str, ...]:
    return "inputs of schedule", schedule


def place_of_trouble(schedule: str) -> tuple[str, ...]:
    return "error of schedule", schedule


#: Functions that return the readable part of a key of `meta`, and of a field of a record.
_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    models.FACTORY: _factory,
    models.CANCELLED: _cancellation,
    models.STEP: _step,
    models.WORKFLOW: _workflow,
    models.META_INJECTED: _hidden,
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
    _trees.FLOW: {"meta": _meta_of_flow, "history": _changes},
    _trees.TASK: _OF_TASKS,
    _trees.RETRY: {**_OF_TASKS, "results": _retry_results},
    _trees.ITEM: {**_OF_ATOMS, "value": _value},
}
