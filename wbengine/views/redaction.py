"""Takes secrets out of whatever is shown."""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid as uuids
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine.persistence import base, listing, models
from wbengine.types import failure as ft
from wbengine.views import formatting, secrets
from wbengine.views.secrets import SecretMatcher

__all__ = ["MASK", "Redactor", "error_line", "redacted", "redactor_for"]

#: What stands in the place of a secret.
MASK: Final = "***"

_DEEPEST: Final = 20
#: So many parts of a container are shown at most, and so many characters of a text.
_MOST: Final = 1000
_LONGEST: Final = 100_000

_HINT: Final = re.compile("|".join(secrets.HINTS), re.IGNORECASE | re.ASCII)
#: What a key is made of, and how much of it is looked at.
_KEY: Final = re.compile(r"[\w.-]{0,60}")
_BEFORE: Final = re.compile(r"[\w.-]{0,60}\Z")
#: An option of a command may have its value behind it as the next word.
_NEXT_WORD: Final = re.compile(r"[\"']?,?[ \t]+(?=[^\s-])")
_BETWEEN: Final = re.compile(r"(?:\\*[\"'])?\]?[ \t]{0,8}(?:=>|:=|=|:(?!//))[ \t]{0,8}")
_OPEN: Final = re.compile(r"[bBrRuUfF]{0,2}(\\*)([\"'])")
_SCHEME: Final = re.compile(r"(?i)(?:bearer|basic|token|digest|negotiate|apikey)\s+(?=\S)")
_PLAIN: Final = re.compile(r"(?:(?!&(?:amp;)?[\w.%-]+=)[^\s])+")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)([A-Za-z0-9._~+/=-]{8,})")
_USER: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)([^\s:/?#@\"'<>]{16,})(?=@)")
_PEM: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_NOTHING: Final = frozenset({"none", "null", "true", "false", "***", "''", '""'})
#: What a sentence, or what is around a pair, may have behind it.
_BEHIND: Final = ".,:;!?)]}>\"'"
_CLOSES: Final = {"(": ")", "[": "]", "{": "}"}


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
        more = SecretMatcher(secrets.found_in(values))
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
        text = self._secrets.hide(text, MASK)
        lowered = text.lower()
        if "://" in lowered:
            text = secrets.URL.sub(rf"\1{MASK}", text)
            text = _USER.sub(rf"\1{MASK}", text)
        if any(hint in lowered for hint in secrets.HINTS):
            text = _pairs(_PEM.sub(rf"\1{MASK}", _BEARER.sub(rf"\1\2{MASK}", text)))
        return text

    def texts(self, many: Iterable[str]) -> list[str]:
        """`text` of each; where there is nothing to mask, in one step."""
        found = list(many)
        joined = "\0".join(found)
        return found if self.text(joined) == joined else [self.text(each) for each in found]

    def url(self, url: str) -> str:
        """A URL without its password, and without secrets in its options."""
        return self.text(url)

    def value(self, value: Any, key: object = None) -> Any:
        """What may be shown of a value, which was found under `key`: something for JSON."""
        if not self.show_values:
            return describe(value)
        if secrets.is_secret_key(key) and value is not None:
            return MASK
        return self._shown(value, 0, ())

    def result(self, value: Any, key: object = None) -> str:
        """`value` in one text."""
        shown = self.value(value, key)
        return shown if isinstance(shown, str) and not self.show_values else repr(shown)

    def _shown(self, value: Any, depth: int, around: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            told = self.text(str(value))
            return value if told == str(value) else told
        if isinstance(value, str):
            return self.text(value[:_LONGEST]) + ("…" if len(value) > _LONGEST else "")
        if isinstance(value, bytes | bytearray):
            return self.text(repr(bytes(value[:_LONGEST])))
        if isinstance(value, ft.Failure):
            return self.text(f"{next(iter(value), 'Exception')}: {value.exception_str}")
        if depth > _DEEPEST or id(value) in around:
            return "…"
        around = (*around, id(value))
        if isinstance(value, Mapping):
            return self._shown_mapping(value, depth, around)
        if isinstance(value, list | tuple | AbstractSet):
            parts = list(value)
            shown = [self._shown(part, depth + 1, around) for part in parts[:_MOST]]
            return shown if len(parts) <= _MOST else [*shown, f"… {len(parts) - _MOST:,} more"]
        return self.text(_repr(value))

    def _shown_mapping(
        self, value: Mapping[Any, Any], depth: int, around: tuple[int, ...]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, (key, inside) in enumerate(list(value.items())):
            if number == _MOST:
                found["…"] = f"{len(value) - _MOST:,} more"
                break
            hidden = secrets.is_secret_key(key) and inside is not None
            name = self.text(key if isinstance(key, str) else _repr(key))
            found[name] = MASK if hidden else self._shown(inside, depth + 1, around)
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


def _pairs(text: str) -> str:
    """Mask what comes after keys that look secret."""
    found, kept, at = [], 0, 0
    while (hint := _HINT.search(text, at)) is not None:
        at, between = _behind_key(text, hint)
        if between is None:
            continue
        begin, end = _span(text, between)
        if begin < end and text[begin:end].lower() not in _NOTHING:
            found += [text[kept:begin], MASK]
            kept = end
        at = max(at, end)
    return "".join([*found, text[kept:]]) if found else text


def _behind_key(text: str, hint: re.Match[str]) -> tuple[int, int | None]:
    """Where the word with the hint ends, and where its value begins, if it is a secret's key."""
    before = _BEFORE.search(text[max(0, hint.start() - 60) : hint.start()])
    after = _KEY.match(text, hint.end())
    head, tail = before[0] if before else "", after[0] if after else ""
    end = hint.end() + len(tail)
    key = head + hint[0] + tail
    if not secrets.is_secret_key(key):
        return end, None
    between = _BETWEEN.match(text, end)
    if between is None and head.startswith("-"):
        between = _NEXT_WORD.match(text, end)
    return end, None if between is None else between.end()


def _span(text: str, at: int) -> tuple[int, int]:
    """Where the value begins and ends that begins at `at`."""
    opened = _OPEN.match(text, at)
    if opened is not None:
        begin = opened.end()
        return begin, _closing(text, begin, opened[1] + opened[2])
    if text[at : at + 1] in _CLOSES:
        return at, _balanced(text, at)
    scheme = _SCHEME.match(text, at)
    begin = at if scheme is None else scheme.end()
    plain = _PLAIN.match(text, begin)
    if plain is None:
        return begin, begin
    return begin, begin + (len(plain[0].rstrip(_BEHIND)) or len(plain[0]))


def _closing(text: str, at: int, quote: str) -> int:
    """Where the text ends that `quote` opened before `at`; what has no end, at the end."""
    while at < len(text):
        if text.startswith(quote, at):
            return at
        at += 2 if text[at] == "\\" and len(quote) == 1 else 1
    return len(text)


def _balanced(text: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    pending: list[str] = []
    while at < len(text):
        mark = text[at]
        if mark in _CLOSES:
            pending.append(_CLOSES[mark])
        elif mark in "\"'":
            at = _closing(text, at + 1, mark)
        elif pending and mark == pending[-1]:
            pending.pop()
            if not pending:
                return at + 1
        at += 1
    return len(text)


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
