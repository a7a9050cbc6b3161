"""Values out of line: large values in a folder or bucket, and references in records and messages.

`opened` returns the place that the setting `payloads` names. Without it, all values stay in records
and messages. The other modules are loaded only with the setting.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.types import _encrypted, _references

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = ["NONE", "VARIABLE", "contains_reference", "loaded", "opened"]

#: Environment variable for the default place.
VARIABLE: Final = "WBENGINE_PAYLOADS"
#: Value instead of a place: values stay in records, even if the environment variable is set.
NONE: Final = "none"

_opened: Final[dict[str, Payloads]] = {}


def opened(location: str | Payloads | None = None) -> Payloads | None:
    """Return the payloads at a location, or None if values stay in records and messages.

    :param location: a folder, or a URL of fsspec; None means `$WBENGINE_PAYLOADS`.
    :raises ValueError: if it is not valid.
    :raises ImportError: if a package is not installed; the message says how to install it.
    """
    if location is None:
        location = os.environ.get(VARIABLE) or NONE
    if not isinstance(location, str):
        return location
    if location == NONE:
        return None
    payloads = _opened.get(location)
    if payloads is None:
        payloads = object_names.load("wbengine._payloads.payloads:Payloads")(location)
        _opened[location] = payloads
    return payloads


def contains_reference(value: Any) -> bool:
    """Return whether a value is a reference, or a dict, list or tuple that contains one."""
    return _references.Reference in _kinds(value)


def _kinds(value: Any) -> Collection[type]:
    """Return the type of a value, or those of the items of a dict, list or tuple."""
    kind = type(value)
    if kind is dict:
        return set(map(type, value.values()))
    return set(map(type, value)) if kind is list or kind is tuple else (kind,)


def loaded(payloads: Payloads | None, value: Any, where: str, reader: str = "this process") -> Any:
    """Return a value with the values of references in it, also in a dict, list or tuple.

    :param where: what needs the value, for the error.
    :param reader: the process that needs it, for the error.
    :raises PayloadUnavailable: if a referenced value is lost or damaged, or there are no payloads.
    :raises StorageFailure: if the folder or bucket cannot be reached, or the value is encrypted and
        this process has no keys.
    """
    if not _references.IN_USE:
        return value
    kinds = _kinds(value)
    if _encrypted.Encrypted in kinds:
        raise exceptions.StorageFailure(f"{where} {_encrypted.NO_KEYS}")
    if _references.Reference not in kinds:
        return value
    if payloads is None:
        raise exceptions.PayloadUnavailable(
            f"{where} is stored out of line, and {reader} cannot read it: set `payloads` there"
            f" (--payloads or ${VARIABLE}) to the folder or bucket of the process that wrote it"
        )
    return payloads.load_all(value, where)
