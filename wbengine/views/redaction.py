"""Masking of secrets in everything that is displayed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import uuid as uuids
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine._security import masking as _secrets
from wbengine._security.masking import MASK, SecretMatcher, is_secret_key, secrets_in
from wbengine.persistence import _listing, base, models
from wbengine.types import _tags, codec
from wbengine.types import failure as ft
from wbengine.types._references import Reference
from wbengine.views import _formatting, _record_values

__all__ = ["MASK", "Redactor", "error_line", "redacted", "redactor_for"]

_MAX_DEPTH: Final = 20
#: Maximum number of displayed entries of a container, and of characters of a text.
_MAX_ENTRIES: Final = 1000
_MAX_CHARACTERS: Final = 100_000


class Redactor:
    """Masking of secrets in texts and values. Immutable and thread-safe.

    It masks passwords in URLs, values of keys that look secret (`password=...`, `"token": "..."`),
    private keys, and all occurrences of known secrets (`with_secrets_from`). Without
    `show_values`, it replaces values by their types and sizes.
    """

    __slots__ = ("_secrets", "show_values")

    def __init__(self, show_values: bool = False, _secrets: SecretMatcher | None = None) -> None:
        self.show_values = show_values
        self._secrets = _secrets or SecretMatcher()

    def with_secrets_from(self, *values: Any) -> Redactor:
        """Return a redactor that also masks all occurrences of the secrets in `values`.

        A secret is the value of a key that looks secret. Secrets of less than six characters are
        masked only next to their keys.
        """
        matcher = SecretMatcher(secrets_in(values))
        return Redactor(self.show_values, self._secrets | matcher) if matcher else self

    def with_secrets_of(self, other: Redactor) -> Redactor:
        """Return a redactor that also masks the secrets of `other`."""
        matcher = self._secrets | other._secrets
        return self if matcher is self._secrets else Redactor(self.show_values, matcher)

    def with_secrets_of_flow(self, detail: models.FlowDetail) -> Redactor:
        """Return a redactor that also masks the secrets in the records of a flow."""
        return self.with_secrets_from(*_record_values.values_of_flow(detail))

    def showing_values(self) -> Redactor:
        """Return a redactor that masks the same secrets and shows values."""
        return self if self.show_values else Redactor(True, self._secrets)

    def text(self, text: str) -> str:
        """Return `text` with masked secrets."""
        return _secrets.masked(self._secrets.hide(text, MASK))

    def texts(self, texts: Iterable[str]) -> list[str]:
        """Apply `text` to each text.

        If none contains a secret, only the joined texts are searched.
        """
        originals = list(texts)
        joined = "\0".join(originals)
        return (
            originals
            if self.text(joined) == joined
            else [self.text(original) for original in originals]
        )

    def value(self, value: Any, key: object = None) -> Any:
        """Return the displayed form of a value as data for JSON. `key` is its name."""
        if not self.show_values:
            return describe(value)
        if is_secret_key(key) and value is not None:
            return MASK
        return self._displayed(value, ())

    def result(self, value: Any, key: object = None) -> str:
        """Return the displayed form of a value as text."""
        shown = self.value(value, key)
        return shown if isinstance(shown, str) and not self.show_values else repr(shown)

    def _displayed(self, value: Any, outer_ids: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            masked = self.text(str(value))
            return value if masked == str(value) else masked
        if isinstance(value, str):
            return self.text(value[:_MAX_CHARACTERS]) + (
                "…" if len(value) > _MAX_CHARACTERS else ""
            )
        if isinstance(value, bytes | bytearray):
            return self.text(repr(bytes(value[:_MAX_CHARACTERS])))
        if isinstance(value, Reference):
            return self.text(f"<{describe(value)}>")
        if isinstance(value, ft.Failure):
            return self.text(f"{next(iter(value), 'Exception')}: {value.exception_str}")
        if len(outer_ids) > _MAX_DEPTH or id(value) in outer_ids:
            return "…"
        outer_ids = (*outer_ids, id(value))
        if isinstance(value, Mapping):
            return self._displayed_mapping(value, outer_ids)
        if isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple):
            names: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
            return self._displayed_mapping(dict(zip(names, value, strict=False)), outer_ids)
        if isinstance(value, list | tuple | AbstractSet):
            parts = list(value)
            shown = [self._displayed(part, outer_ids) for part in parts[:_MAX_ENTRIES]]
            return (
                shown
                if len(parts) <= _MAX_ENTRIES
                else [*shown, f"… {len(parts) - _MAX_ENTRIES:,} more"]
            )
        return self.text(_repr(value))

    def _displayed_mapping(
        self, value: Mapping[Any, Any], outer_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for number, (key, entry) in enumerate(list(value.items())):
            if number == _MAX_ENTRIES:
                entries["…"] = f"{len(value) - _MAX_ENTRIES:,} more"
                break
            is_hidden = is_secret_key(key) and entry is not None
            name = self.text(key if isinstance(key, str) else _repr(key))
            entries[name] = MASK if is_hidden else self._displayed(entry, outer_ids)
        return entries


def describe(value: Any) -> str:
    """Return the type and size of a value, without its content.

    >>> describe("secret"), describe([1, 2]), describe(None), describe(1.5)
    ('str, 6 characters', 'list, 2 items', 'None', 'float')
    """
    if value is None:
        return "None"
    if isinstance(value, Reference):
        return f"{value.kind}, {_formatting.size(value.size)}, stored out of line"
    name = type(value).__name__
    if isinstance(value, str):
        return f"{name}, {_formatting.count(len(value), 'character')}"
    if isinstance(value, bytes | bytearray):
        return f"{name}, {_formatting.size(len(value))}"
    if isinstance(value, Mapping):
        return f"{name}, {_formatting.count(len(value), 'key')}"
    if isinstance(value, list | tuple | AbstractSet):
        return f"{name}, {_formatting.count(len(value), 'item')}"
    return name


def _repr(value: Any) -> str:
    try:
        return repr(value)[:_MAX_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"


_T = TypeVar("_T")


def redacted(views: Iterable[_T], redactor: Redactor) -> list[_T]:
    """Return frozen views with masked texts, also in tuples and nested views.

    A view without secrets is returned unchanged. Each distinct text is masked once, because
    workers share topics and tasks.
    """
    masked_texts: dict[str, str] = {}
    return [_redacted(view, redactor, masked_texts) for view in views]


def _redacted(value: Any, redactor: Redactor, masked_texts: dict[str, str]) -> Any:
    if isinstance(value, str):
        masked = masked_texts.get(value)
        if masked is None:
            masked = masked_texts[value] = redactor.text(value)
        return masked
    if isinstance(value, tuple):
        return tuple(_redacted(each, redactor, masked_texts) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed_fields = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = _redacted(old, redactor, masked_texts)
            if new != old:
                changed_fields[field.name] = new
        return dataclasses.replace(value, **changed_fields) if changed_fields else value
    return value


#: Maximum number of atoms of a flow whose records are read for one row of a list.
_MAX_ATOMS_READ: Final = 200
_MAX_CACHED_REDACTORS: Final = 1000

#: Type of a tag in a view: times are ISO texts.
TagValue = str | int | float | bool

_cache_lock: Final = threading.Lock()
#: Redactors with the secrets of flows, valid until the flow is written again.
_cached_redactors: OrderedDict[tuple[str, float | None, bool], Redactor] = OrderedDict()


def tags(flow_tags: Mapping[str, _tags.Value], redactor: Redactor) -> dict[str, TagValue]:
    """Return the tags of a flow for JSON. Values of keys that look secret are masked."""
    shown: dict[str, TagValue] = {}
    for key, text in _tags.texts_of(flow_tags).items():
        masked = redactor.text(f"{key}={text}").partition("=")[2]
        value = flow_tags[key]
        shown[key] = masked if masked != text or isinstance(value, dt.datetime) else value
    return shown


def redactor_for(
    connection: base.Connection, row: _listing.FlowRow, redactor: Redactor
) -> Redactor:
    """Return `redactor` with the secrets of the flow of `row`.

    If the flow is large or has no error, only its inputs (one small record) are read. The result is
    cached until the flow is written again.
    """
    key = (row.uuid, row.updated, row.error is not None)
    with _cache_lock:
        flow_redactor = _cached_redactors.get(key)
    if flow_redactor is None:
        flow_redactor = _read_redactor(connection, row)
        with _cache_lock:
            _cached_redactors[key] = flow_redactor
            while len(_cached_redactors) > _MAX_CACHED_REDACTORS:
                _cached_redactors.popitem(last=False)
    return redactor.with_secrets_of(flow_redactor)


def error_line(row: _listing.FlowRow, redactor: Redactor) -> str | None:
    """Return why the flow failed, in one line.

    For a large flow, the line contains only the atom and the type of the exception. The message
    could contain a secret that can be recognized only with the results, which are not read.
    """
    if row.error is None:
        return None
    if sum(row.counts.values()) <= _MAX_ATOMS_READ:
        return redactor.text(row.error)
    return redactor.text(": ".join(row.error.split(": ")[:2]))


def _read_redactor(connection: base.Connection, row: _listing.FlowRow) -> Redactor:
    try:
        with codec.unknown_classes_as_text():
            if row.error is not None and sum(row.counts.values()) <= _MAX_ATOMS_READ:
                return Redactor().with_secrets_of_flow(connection.get_flow_details(row.uuid))
            inputs_uuid = uuids.uuid5(uuids.NAMESPACE_OID, f"{row.uuid} {models.INJECTOR}")
            return Redactor().with_secrets_from(
                *_record_values.values_of_records([connection.get_atom_details(str(inputs_uuid))])
            )
    except (exceptions.NotFound, exceptions.CorruptRecord):
        return Redactor()
