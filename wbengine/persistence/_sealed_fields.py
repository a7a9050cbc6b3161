"""Encryption of the secret parts of records, as trees of `_trees`.

If the keys encrypt (see `_security.sealing`), the field `sealed` of a record contains its secret
fields, encrypted together, and the fields themselves contain what everybody may read. Secret are
values of users, messages and tracebacks of failures, and reasons and notes of users. Names, states,
times, classes of exceptions and tags are not.

A process without keys reads the readable part, which cannot be stored again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._security import sealing
from wbengine.persistence import models
from wbengine.types._encrypted import ENCRYPTED, NO_KEYS

__all__ = [
    "MARK", "SEALED", "check_opened", "opened", "opened_parts", "place_of_arguments",
    "place_of_details", "place_of_edits", "place_of_inputs", "place_of_log", "place_of_note",
    "place_of_signal", "place_of_trouble", "sealed", "sealed_parts", "secret_details",
]  # fmt: skip

#: Field of a tree with the encrypted fields.
SEALED: Final = "sealed"
#: Key in the `meta` of a flow or logbook that this process has not decrypted.
MARK: Final = "encrypted"

Tree = dict[str, Any]


def sealed(kind: str, tree: Mapping[str, Any], *place: str) -> Mapping[str, Any]:
    """Return the tree of a record with encrypted fields, or unchanged if nothing is encrypted.

    :param kind: the kind of the record (see `_trees`).
    :param place: identifies the record.
    :raises NotTrusted, InvalidFormat: as `sealing.sealed` does.
    """
    if not sealing.is_on():
        return tree
    readable: Tree = _parts().readable(kind, tree)
    secret = {name: value for name, value in tree.items() if readable[name] != value}
    # A process without keys recognizes the mark, and does not store the record again.
    if kind == "flow" or (kind == "book" and secret):
        readable["meta"] = {**(readable["meta"] or {}), MARK: sealing.HIDDEN}
        secret["meta"] = tree["meta"]
    if secret:
        readable[SEALED] = sealing.sealed_tag(_text(secret), *place)
    return readable


def sealed_parts(data: Tree, names: Iterable[str], *place: str) -> Tree:
    """Return a dict in which the values of these keys are encrypted, if something is."""
    secret = {name: data[name] for name in names if data.get(name) is not None}
    tag = sealing.sealed_tag(_text(secret), *place) if secret else None
    if tag is None:
        return data
    hidden = _parts().hidden
    return {**data, **{name: hidden(value) for name, value in secret.items()}, SEALED: tag}


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


def secret_details(packed: Tree) -> list[str]:
    """Return the names of the encrypted details of a job."""
    return [name for name in packed if name != "flow_uuid"]


def check_opened(record: models.FlowDetail | models.LogBook) -> None:
    """Check that this process could decrypt a flow or logbook, before it uses or stores it.

    :raises StorageFailure: if it could not.
    """
    if record.meta_value(MARK) is ENCRYPTED:
        kind = "Flow" if isinstance(record, models.FlowDetail) else "Logbook"
        raise exceptions.StorageFailure(f"{kind} {record.uuid} {NO_KEYS}")


@functools.cache
def _parts() -> Any:
    """Load the readable parts of records, which few processes need."""
    return object_names.load("wbengine.persistence._readable_parts")


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))


# Places of texts, to which their encryption is bound.


def place_of_log(atom_uuid: str, attempt: int, item: int) -> tuple[str, ...]:
    return "log", atom_uuid, str(attempt), str(item)


def place_of_signal(flow_uuid: str, stored_name: str) -> tuple[str, ...]:
    return "signal", flow_uuid, stored_name


def place_of_edits(flow_uuid: str) -> tuple[str, ...]:
    return "edits", flow_uuid


def place_of_arguments(bulk_uuid: str, flow_uuid: str = "") -> tuple[str, ...]:
    return "arguments of operation", bulk_uuid, flow_uuid


def place_of_details(job_uuid: str) -> tuple[str, ...]:
    return "details of job", job_uuid


def place_of_note(duty: str) -> tuple[str, ...]:
    return "note of work", duty


def place_of_inputs(schedule: str) -> tuple[str, ...]:
    return "inputs of schedule", schedule


def place_of_trouble(schedule: str) -> tuple[str, ...]:
    return "error of schedule", schedule
