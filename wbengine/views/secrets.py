"""What is secret: which keys say so, what they hold, where it is written in a text."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final
from urllib import parse

from wbengine.persistence import changes, models
from wbengine.types import failure as ft

__all__ = [
    "HINTS",
    "SHORTEST",
    "SecretMatcher",
    "URL",
    "found_in",
    "is_secret_key",
    "values_of_changes",
    "values_of_flow",
    "values_of_records",
]

#: Wherever one of these is in a key, it is that of a secret.
_ANYWHERE: Final = re.compile(
    r"passwo?r?d|passphrase|secret|credential|authori[sz]ation|(?:api|access|private|signing|"
    r"encryption|master|account|shared)[_.\s-]?key(?!s?_?(?:name|word|board|id))"
)
#: These are words of their own, as in `auth_token`, `authToken`, `DB_PWD`; not as in `tokenizer`.
_WORDS: Final = frozenset(
    {
        "auth", "bearer", "cookie", "cookies", "cred", "creds", "dsn", "jwt", "otp", "pass",
        "passwd", "pin", "pwd", "sas", "secrets", "sessionid", "token", "tokens",
    }
)  # fmt: skip
#: A key that ends with one of these is about a secret, and holds none: `token_count`.
_ABOUT: Final = frozenset(
    {
        "age", "at", "backend", "budget", "count", "counts", "endpoint", "expiration", "expires",
        "expiry", "file", "kind", "length", "lifetime", "limit", "limits", "method", "methods",
        "mode", "name", "names", "path", "policy", "provider", "required", "scheme", "scope",
        "scopes", "size", "timeout", "ttl", "type", "types", "uri", "url", "usage", "used",
    }
)  # fmt: skip
#: In front of `tokens` these say how many there are.
_AMOUNTS: Final = frozenset(
    {
        "cached", "completion", "input", "max", "maximum", "min", "minimum", "n", "num", "number",
        "output", "prompt", "reasoning", "total", "used",
    }
)  # fmt: skip
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+")
#: A text without any of these (in lower case) has no key that looks secret.
HINTS: Final = (
    "passw", "passphrase", "secret", "credential", "authori", "key", "auth", "bearer", "cookie",
    "cred", "dsn", "jwt", "pass", "pwd", "sas", "sessionid", "token", "otp", "pin",
)  # fmt: skip
_HINT: Final = re.compile("|".join(HINTS))
#: Nothing is in these, and they are no secrets of their own unless their key says so.
_PLAIN: Final = (int, float, bool, type(None))

#: What is before a password in a URL, and the password: which may hold anything but white space,
#: quotes and the beginning of another URL.
URL: Final = re.compile(
    r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/?#@\"'<>]{0,200}:)((?:(?!://)[^\s\"'<>])+)(?=@)"
)
_DEEPEST: Final = 50


def is_secret_key(key: object) -> bool:
    """Whether what is kept under `key` is secret by its name.

    >>> [is_secret_key(key) for key in ("db_password", "authToken", "API-Key", "max_tokens")]
    [True, True, True, False]
    """
    if isinstance(key, bytes):
        key = key.decode("utf-8", "replace")
    return isinstance(key, str) and _is_secret(key)


@functools.lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    lowered = key.lower()
    if _HINT.search(lowered) is None:
        return False
    words = [word.lower() for word in _WORD.findall(key)]
    if words and words[-1] in _ABOUT:
        return False
    if _ANYWHERE.search(lowered):
        return True
    if words[-1:] == ["tokens"] and not _AMOUNTS.isdisjoint(words):
        return False
    return any(word in _WORDS for word in words)


def found_in(values: Iterable[Any]) -> Iterator[Any]:
    """What secret-looking keys hold in `values`, at any depth, and the passwords of URLs.

    Looks into mappings, lists, tuples, sets and failures; what holds itself is looked at once.
    """
    seen: set[int] = set()
    pending: list[tuple[Any, bool, int]] = [(value, False, 0) for value in values]
    while pending:
        value, secret, depth = pending.pop()
        if isinstance(value, str):
            if secret or "://" in value:
                yield from _in_text(value, secret)
        elif isinstance(value, bytes):
            if secret:
                yield value
            yield from _in_text(value.decode("utf-8", "replace"), False)
        elif isinstance(value, _PLAIN):
            if secret and value is not None and not isinstance(value, bool):
                yield value
        elif type(value) is dict and not secret and _is_plain(value):
            continue
        elif id(value) not in seen and depth <= _DEEPEST:
            seen.add(id(value))
            depth += 1
            pending += [
                (inside, secret or (key is not None and is_secret_key(key)), depth)
                for key, inside in _parts(value)
            ]


def _is_plain(value: Mapping[Any, Any]) -> bool:
    """Whether there is nothing to be found in a mapping; says so for the usual small ones."""
    for key, inside in value.items():
        kind = type(inside)
        if kind is str:
            if "://" in inside:
                return False
        elif kind is not int and kind is not float and inside is not None and kind is not bool:
            return False
        if is_secret_key(key):
            return False
    return True


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from list(value.items())
    elif isinstance(value, list | tuple | AbstractSet):
        names = getattr(value, "_fields", None)  # a named tuple says what its parts are
        if isinstance(value, tuple) and isinstance(names, tuple):
            yield from zip(names, value, strict=False)
        else:
            yield from [(None, inside) for inside in list(value)]
    elif isinstance(value, ft.Failure):
        yield None, value.exception_args
        yield None, value.exception_str
        for cause in value.causes:
            yield None, cause.exception_args
            yield None, cause.exception_str


def _in_text(text: str, secret: bool) -> Iterator[str]:
    if secret:
        yield text
    if "://" in text:
        for found in URL.finditer(text):
            yield found[2]


_NOTHING = (None, None, None, None)


def values_of_flow(detail: models.FlowDetail) -> Iterator[Any]:
    """All values of a flow, each under its name as far as it has one: for
    `Redactor.with_secrets_from`."""
    if detail.has_meta:
        yield detail.meta
    yield from values_of_records(detail)


def values_of_records(records: Iterable[models.AtomDetail]) -> Iterator[Any]:
    """The values of some of its records."""
    for record in records:
        if record.has_meta:
            yield record.meta
        told = (record.results, record.revert_results, record.failure, record.revert_failure)
        if told != _NOTHING:
            secret = is_secret_key(record.name)
            for value in told:
                if value is not None and not isinstance(value, int | float):
                    # What "make_password" returns is one.
                    yield {record.name: value} if secret else value
        if record.progress_details is not None:
            yield record.progress_details
        yield from _of_items(record.items or ())


def values_of_changes(found: changes.Changes) -> Iterator[Any]:
    """The values of what changed."""
    yield from values_of_flow(found.flow)
    yield from values_of_records(found.atoms)
    for items in found.items.values():
        yield from _of_items(items)


def _of_items(items: Iterable[models.ItemDetail]) -> Iterator[Any]:
    for item in items:
        yield from (item.value, item.results, item.failure, item.revert_failure)


#: Shorter secrets are masked under their own keys only: they are part of too many words.
SHORTEST: Final = 6
#: So much of a secret that was cut off gives it away.
_START: Final = 4
#: So many digits a number has to have.
_DIGITS: Final = 6
_LINE: Final = 8
_HARMLESS: Final = frozenset({"none", "null", "true", "false"})
_CUT: Final = re.compile(r"\.\.\.|…")


class SecretMatcher:
    """Texts that must not be shown, in all the forms in which they are usually written.

    Finding them costs what the text is long, however many there are.
    """

    __slots__ = ("_by_end", "_by_start")

    def __init__(self, secrets: Iterable[Any] = ()) -> None:
        # The first characters -> what begins so, by its length, the longest first.
        self._by_start: dict[str, _Forms] = {}
        starts: dict[str, set[str]] = {}
        for secret in secrets:
            for form in _forms(secret):
                starts.setdefault(form[:_START], set()).add(form)
        for start, forms in starts.items():
            self._by_start[start] = _by_length(forms)
        # The last characters -> what ends so; made when a text was cut off.
        self._by_end: dict[str, set[str]] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def __or__(self, other: SecretMatcher) -> SecretMatcher:
        """Those of both."""
        if not other or other is self:
            return self
        if not self:
            return other
        both = SecretMatcher()
        both._by_start = dict(self._by_start)
        for start, forms in other._by_start.items():
            mine = both._by_start.get(start)
            if mine is not None and mine != forms:
                forms = _by_length(form for _, each in (*mine, *forms) for form in each)
            both._by_start[start] = forms
        return both

    def hide(self, text: str, mask: str) -> str:
        """`text` with `mask` in place of each; also of what is left of one beside dots."""
        starts = self._by_start
        if not starts or len(text) < _START:
            return text
        cuts = list(_CUT.finditer(text))
        if not cuts and len(starts) < 64 and not any(start in text for start in starts):
            return text
        found, kept, at, number = [], 0, 0, 0
        last = len(text) - _START
        while at <= last:
            while number < len(cuts) and cuts[number].end() < at:
                number += 1
            cut = cuts[number] if number < len(cuts) else None
            length = self._length_at(text, at, cut)
            if length:
                found += [text[kept:at], mask]
                at += length
                kept = at
            else:
                at += 1
        return "".join([*found, text[kept:]]) if found else text

    def _length_at(self, text: str, at: int, cut: re.Match[str] | None) -> int:
        """How long what must not be shown is that begins at `at`; 0: nothing does.

        `cut` are the next dots, or those that end at `at`: what is before them may be the beginning
        of a secret, what is behind them the end of one.
        """
        forms = self._by_start.get(text[at : at + _START], ())
        for length, known in forms:
            if text[at : at + length] in known:
                return length
        if cut is None:
            return 0
        if cut.end() == at:
            return self._end_at(text, at)
        rest = text[at : cut.start()]
        if len(rest) >= _START and any(
            form.startswith(rest)
            for length, known in forms
            if length >= len(rest)
            for form in known
        ):
            return len(rest)
        return 0

    def _end_at(self, text: str, at: int) -> int:
        """How much of the end of a secret is at `at`."""
        if self._by_end is None:
            ends: dict[str, set[str]] = {}
            for forms in self._by_start.values():
                for _, known in forms:
                    for form in known:
                        ends.setdefault(form[-_START:], set()).add(form)
            self._by_end = ends
        longest = max(forms[0][0] for forms in self._by_start.values())
        for end in range(min(len(text), at + longest), at + _START - 1, -1):
            rest = text[at:end]
            if any(form.endswith(rest) for form in self._by_end.get(rest[-_START:], ())):
                return len(rest)
        return 0


_Forms = tuple[tuple[int, frozenset[str]], ...]


def _by_length(forms: Iterable[str]) -> _Forms:
    lengths: dict[int, set[str]] = {}
    for form in forms:
        lengths.setdefault(len(form), set()).add(form)
    return tuple((length, frozenset(lengths[length])) for length in sorted(lengths, reverse=True))


def _forms(secret: Any) -> Iterator[str]:
    """How a secret may be written."""
    if isinstance(secret, int | float):
        if len(str(secret)) >= _DIGITS:
            yield str(secret)
        return
    if isinstance(secret, bytes):
        try:
            secret = secret.decode()
        except UnicodeDecodeError:
            yield from _forms_of_bytes(secret)
            return
    text = str(secret).strip()
    if len(text) < SHORTEST or text.lower() in _HARMLESS:
        return
    escaped = json.dumps(text)[1:-1]
    raw = text.encode("utf-8", "replace")
    yield from {
        text,
        str(secret),
        repr(text)[1:-1],
        repr(raw)[2:-1],
        escaped,
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(escaped)[1:-1],
        " ".join(text.split()),
        parse.quote(text),
        parse.quote(text, safe=""),
        parse.quote_plus(text),
        parse.unquote(text) if len(parse.unquote(text)) >= SHORTEST else text,
        base64.b64encode(raw).decode(),
    }
    for line in text.splitlines():
        if len(line.strip()) >= _LINE:
            yield line.strip()


def _forms_of_bytes(secret: bytes) -> Iterator[str]:
    """How bytes that are no text may be written."""
    written = repr(secret)[2:-1]
    forms = {
        written,
        json.dumps(written)[1:-1],
        secret.decode("utf-8", "replace"),
        parse.quote(secret, safe=""),
        secret.hex(),
        base64.b64encode(secret).decode(),
    }
    if len(secret) >= SHORTEST:
        yield from (form for form in forms if len(form) >= SHORTEST)
