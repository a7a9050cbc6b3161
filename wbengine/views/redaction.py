"""Takes secrets out of whatever is shown."""

from __future__ import annotations

import dataclasses
import threading
import uuid as uuids
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from wbengine import _secrets, exceptions
from wbengine._secrets import MASK, SecretMatcher, found_in, is_secret_key
from wbengine.persistence import base, listing, models
from wbengine.types import failure as ft
from wbengine.views import formatting, secrets

__all__ = ["MASK", "Redactor", "error_line", "redacted", "redactor_for"]

_DEEPEST: Final = 20
#: So many parts of a container are shown at most, and so many characters of a text.
_MOST: Final = 1000
_LONGEST: Final = 100_000


class Redactor:
    """Takes secrets out of whatever is shown.

    In any text it masks passwords of URLs, values of keys that look secret (`password=...`,
    `"token": "..."`), private keys, and each occurrence of a secret that it knows
    (`with_secrets_from`).
    Values are shown with `show_values` only; else what they are, and how large.

    Immutable: what knows more is another one.  May be used by any thread.
    """

    __slots__ = ("_secrets", "show_values")

    def __init__(self, show_values: bool = False, _secrets: SecretMatcher | None = None) -> None:
        self.show_values = show_values
        self._secrets = _secrets or SecretMatcher()

    def with_secrets_from(self, *values: Any) -> Redactor:
        """One that also masks what secret-looking keys in `values` hold, wherever it occurs.

        Secrets of less than six characters are masked beside their keys only.
        """
        more = SecretMatcher(found_in(values))
        return Redactor(self.show_values, self._secrets | more) if more else self

    def with_secrets_of(self, other: Redactor) -> Redactor:
        """One that also knows what `other` does."""
        more = self._secrets | other._secrets
        return self if more is self._secrets else Redactor(self.show_values, more)

    def with_secrets_of_flow(self, detail: models.FlowDetail) -> Redactor:
        """One that also knows the secrets in the records of a flow."""
        return self.with_secrets_from(*secrets.values_of_flow(detail))

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return _secrets.masked(self._secrets.hide(text, MASK))

    def texts(self, many: Iterable[str]) -> list[str]:
        """`text` of each; where there is nothing to mask, in one step."""
        found = list(many)
        joined = "\0".join(found)
        return found if self.text(joined) == joined else [self.text(each) for each in found]

    def value(self, value: Any, key: object = None) -> Any:
        """What may be shown of a value, which was found under `key`: something for JSON."""
        if not self.show_values:
            return describe(value)
        if is_secret_key(key) and value is not None:
            return MASK
        return self._shown(value, ())

    def result(self, value: Any, key: object = None) -> str:
        """`value` in one text."""
        shown = self.value(value, key)
        return shown if isinstance(shown, str) and not self.show_values else repr(shown)

    def _shown(self, value: Any, around: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            masked = self.text(str(value))
            return value if masked == str(value) else masked
        if isinstance(value, str):
            return self.text(value[:_LONGEST]) + ("…" if len(value) > _LONGEST else "")
        if isinstance(value, bytes | bytearray):
            return self.text(repr(bytes(value[:_LONGEST])))
        if isinstance(value, ft.Failure):
            return self.text(f"{next(iter(value), 'Exception')}: {value.exception_str}")
        if len(around) > _DEEPEST or id(value) in around:
            return "…"
        around = (*around, id(value))
        if isinstance(value, Mapping):
            return self._shown_mapping(value, around)
        if isinstance(value, list | tuple | AbstractSet):
            parts = list(value)
            shown = [self._shown(part, around) for part in parts[:_MOST]]
            return shown if len(parts) <= _MOST else [*shown, f"… {len(parts) - _MOST:,} more"]
        return self.text(_repr(value))

    def _shown_mapping(self, value: Mapping[Any, Any], around: tuple[int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, (key, inside) in enumerate(list(value.items())):
            if number == _MOST:
                found["…"] = f"{len(value) - _MOST:,} more"
                break
            hidden = is_secret_key(key) and inside is not None
            name = self.text(key if isinstance(key, str) else _repr(key))
            found[name] = MASK if hidden else self._shown(inside, around)
        return found


def describe(value: Any) -> str:
    """The type of a value, and how large it is: nothing of what is in it.

    >>> describe("secret"), describe([1, 2]), describe(None), describe(1.5)
    ('str, 6 characters', 'list, 2 items', 'None', 'float')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, str):
        return f"{name}, {formatting.count(len(value), 'character')}"
    if isinstance(value, bytes | bytearray):
        return f"{name}, {formatting.size(len(value))}"
    if isinstance(value, Mapping):
        return f"{name}, {formatting.count(len(value), 'key')}"
    if isinstance(value, list | tuple | AbstractSet):
        return f"{name}, {formatting.count(len(value), 'item')}"
    return name


def _repr(value: Any) -> str:
    try:
        return repr(value)[:_LONGEST]
    except Exception:
        return f"<{type(value).__name__}>"


_T = TypeVar("_T")


def redacted(views: Iterable[_T], redactor: Redactor) -> list[_T]:
    """Frozen views as they may be shown: those that hold no secret, themselves.

    Texts are looked at in tuples and in views inside of views, too; each is redacted once, for
    workers have their topics and tasks in common.
    """
    said: dict[str, str] = {}
    return [_redacted(view, redactor, said) for view in views]


def _redacted(value: Any, redactor: Redactor, said: dict[str, str]) -> Any:
    if isinstance(value, str):
        told = said.get(value)
        if told is None:
            told = said[value] = redactor.text(value)
        return told
    if isinstance(value, tuple):
        return tuple(_redacted(each, redactor, said) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = _redacted(old, redactor, said)
            if new != old:
                found[field.name] = new
        return dataclasses.replace(value, **found) if found else value
    return value


#: Flows of more atoms are not read for a line.
_SMALL: Final = 200
_KEPT: Final = 1000

_lock: Final = threading.Lock()
#: What is known of flows, as they were when they were written last.
_known: OrderedDict[tuple[str, float | None, bool], Redactor] = OrderedDict()


def tags(found: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """The tags of a flow, as they may be shown: those under a secret's key are masked."""
    pairs = ((key, redactor.text(f"{key}={value}")) for key, value in found.items())
    return {key: told.partition("=")[2] for key, told in pairs}


def redactor_for(connection: base.Connection, row: listing.FlowRow, redactor: Redactor) -> Redactor:
    """`redactor`, which also knows what is secret in the flow of `row`.

    Of one that is large, or of which nothing failed, the flow's own values are read only: one small
    record, once for each time that the flow was written.
    """
    key = (row.uuid, row.updated, row.error is not None)
    with _lock:
        found = _known.get(key)
    if found is None:
        found = _looked(connection, row)
        with _lock:
            _known[key] = found
            while len(_known) > _KEPT:
                _known.popitem(last=False)
    return redactor.with_secrets_of(found)


def error_line(row: listing.FlowRow, redactor: Redactor) -> str | None:
    """Why the flow failed, in one line; of a large one, with a message that may tell what only its
    results say to be secret, no more than what failed with which type of exception.
    """
    if row.error is None:
        return None
    if sum(row.counts.values()) <= _SMALL:
        return redactor.text(row.error)
    return redactor.text(": ".join(row.error.split(": ")[:2]))


def _looked(connection: base.Connection, row: listing.FlowRow) -> Redactor:
    try:
        if row.error is not None and sum(row.counts.values()) <= _SMALL:
            return Redactor().with_secrets_of_flow(connection.get_flow_details(row.uuid))
        own = uuids.uuid5(uuids.NAMESPACE_OID, f"{row.uuid} {models.INJECTOR}")
        return Redactor().with_secrets_from(
            *secrets.values_of_records([connection.get_atom_details(str(own))])
        )
    except (exceptions.NotFound, exceptions.CorruptRecord):
        return Redactor()
