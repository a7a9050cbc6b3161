"""Detection and masking of secrets: by their keys, by their values, and in text."""

from __future__ import annotations

import base64
import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final
from urllib import parse

from wbengine.types import failure as ft
from wbengine.types._encoding import classes

__all__ = [
    "ACCESS_KEY",
    "MASK",
    "SHORTEST",
    "SecretMatcher",
    "secrets_in",
    "is_secret_key",
    "masked",
]

#: Replacement for a secret.
MASK: Final = "***"

#: Parts of keys that indicate a secret.
_SECRET_PARTS: Final = re.compile(
    r"passwo?r?d|passphrase|secret|credential|authori[sz]ation|(?:api|access|private|signing|"
    r"encryption|master|account|shared)[_.\s-]?key(?!s?_?(?:name|word|board|id))"
)
#: Words of keys that indicate a secret, as in `auth_token`, `authToken`, `DB_PWD`. Parts of words
#: do not count (`tokenizer`).
_SECRET_WORDS: Final = frozenset(
    {
        "auth", "bearer", "cookie", "cookies", "cred", "creds", "dsn", "jwt", "otp", "pass",
        "passwd", "pin", "pwd", "sas", "secrets", "sessionid", "token", "tokens",
    }
)  # fmt: skip
#: Last words of keys that describe a secret but do not contain it, as in `token_count`.
_DESCRIPTIVE_WORDS: Final = frozenset(
    {
        "age", "at", "backend", "budget", "count", "counts", "endpoint", "expiration", "expires",
        "expiry", "file", "kind", "length", "lifetime", "limit", "limits", "method", "methods",
        "mode", "name", "names", "path", "policy", "provider", "required", "scheme", "scope",
        "scopes", "size", "timeout", "ttl", "type", "types", "uri", "url", "usage", "used",
    }
)  # fmt: skip
#: Words in a key that mean that `tokens` is a number of tokens, as in `max_tokens`.
_COUNT_WORDS: Final = frozenset(
    {
        "cached", "completion", "input", "max", "maximum", "min", "minimum", "n", "num", "number",
        "output", "prompt", "reasoning", "total", "used",
    }
)  # fmt: skip
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+")
#: A text without any of these (in lower case) contains no secret key.
HINTS: Final = (
    "passw", "passphrase", "secret", "credential", "authori", "key", "auth", "bearer", "cookie",
    "cred", "dsn", "jwt", "pass", "pwd", "sas", "sessionid", "token", "otp", "pin",
)  # fmt: skip
_HINT: Final = re.compile("|".join(HINTS))
#: Types of values that contain no other values. Such a value is secret only because of its key.
_PLAIN: Final = (int, float, bool, type(None))

#: The part of a URL before the password, and the password. It may contain anything except white
#: space, quotes and the start of another URL.
URL: Final = re.compile(
    r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/?#@\"'<>]{0,200}:)((?:(?!://)[^\s\"'<>])+)(?=@)"
)
#: A key of the dashboard's API: its public part, and the secret.
ACCESS_KEY: Final = re.compile(r"\b(wbe_[a-z0-9]{12}_)[A-Za-z0-9]{40}\b")
_MAX_DEPTH: Final = 50


def is_secret_key(key: object) -> bool:
    """Return True if the name of `key` indicates a secret.

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
    if words and words[-1] in _DESCRIPTIVE_WORDS:
        return False
    if _SECRET_PARTS.search(lowered):
        return True
    if words[-1:] == ["tokens"] and not _COUNT_WORDS.isdisjoint(words):
        return False
    return any(word in _SECRET_WORDS for word in words)


def secrets_in(values: Iterable[Any], most: int = sys.maxsize) -> Iterator[Any]:
    """Yield the values of secret keys in `values`, at any depth, and the passwords of URLs.

    Mappings, lists, tuples, sets, failures and instances of allowed classes are searched. Each
    object is visited once, so cycles are safe.

    :param most: maximum number of values that are visited.
    """
    seen: set[int] = set()
    pending: list[tuple[Any, bool, int]] = [(value, False, 0) for value in values]
    while pending and most > 0:
        value, secret, depth = pending.pop()
        most -= 1
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
        elif id(value) not in seen and depth <= _MAX_DEPTH:
            seen.add(id(value))
            depth += 1
            pending += [
                (inside, secret or (key is not None and is_secret_key(key)), depth)
                for key, inside in _parts(value)
            ]


def _is_plain(value: Mapping[Any, Any]) -> bool:
    """Return True only if a small mapping contains no secret. This check is fast but incomplete."""
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
        names = getattr(value, "_fields", None)  # A named tuple has keys.
        if isinstance(value, tuple) and isinstance(names, tuple):
            yield from zip(names, value, strict=False)
        else:
            yield from [(None, inside) for inside in list(value)]
    elif isinstance(value, ft.Failure):
        for part in (value, *value.causes):
            yield None, part.exception_args
            yield None, part.exception_str
            yield None, part.notes
            yield None, part.members
    else:
        yield from classes.contents(value).items()


def _in_text(text: str, secret: bool) -> Iterator[str]:
    if secret:
        yield text
    if "://" in text:
        for url_match in URL.finditer(text):
            yield url_match[2]


#: Minimum length of secrets that are masked everywhere. Shorter secrets are also common parts of
#: words, so they are masked only after their keys.
SHORTEST: Final = 6
#: Minimum number of characters of a truncated secret for it to be masked.
_MIN_TRUNCATED_LENGTH: Final = 4
#: Minimum number of digits of a secret number.
_MIN_SECRET_DIGITS: Final = 6
_MIN_LINE_LENGTH: Final = 8
_HARMLESS_WORDS: Final = frozenset({"none", "null", "true", "false"})
_ELLIPSIS: Final = re.compile(r"\.\.\.|…")


class SecretMatcher:
    """Finds and masks known secrets in text, in all their usual notations.

    The time of a search depends on the length of the text, not on the number of secrets.
    """

    __slots__ = ("_by_end", "_by_start")

    def __init__(self, secrets: Iterable[Any] = ()) -> None:
        # Notations by their first characters, grouped by length, longest first.
        self._by_start: dict[str, _FormsByLength] = {}
        starts: dict[str, set[str]] = {}
        for secret in secrets:
            for form in _forms(secret):
                starts.setdefault(form[:_MIN_TRUNCATED_LENGTH], set()).add(form)
        for start, forms in starts.items():
            self._by_start[start] = _by_length(forms)
        # Notations by their last characters. Created for the first truncated text.
        self._by_end: dict[str, set[str]] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def __or__(self, other: SecretMatcher) -> SecretMatcher:
        if not other or other is self:
            return self
        if not self:
            return other
        both = SecretMatcher()
        both._by_start = dict(self._by_start)
        for start, forms in other._by_start.items():
            own_forms = both._by_start.get(start)
            if own_forms is not None and own_forms != forms:
                forms = _by_length(form for _, group in (*own_forms, *forms) for form in group)
            both._by_start[start] = forms
        return both

    def hide(self, text: str, mask: str) -> str:
        """Replace each secret in `text` with `mask`, also if an ellipsis truncates the secret."""
        starts = self._by_start
        if not starts or len(text) < _MIN_TRUNCATED_LENGTH:
            return text
        cuts = list(_ELLIPSIS.finditer(text))
        if not cuts and len(starts) < 64 and not any(start in text for start in starts):
            return text
        pieces, copied_end, at, number = [], 0, 0, 0
        last = len(text) - _MIN_TRUNCATED_LENGTH
        while at <= last:
            while number < len(cuts) and cuts[number].end() < at:
                number += 1
            cut = cuts[number] if number < len(cuts) else None
            length = self._length_at(text, at, cut)
            if length:
                pieces += [text[copied_end:at], mask]
                at += length
                copied_end = at
            else:
                at += 1
        return "".join([*pieces, text[copied_end:]]) if pieces else text

    def _length_at(self, text: str, at: int, cut: re.Match[str] | None) -> int:
        """Return the length of the secret at position `at`, or 0.

        `cut` is the next ellipsis, or the ellipsis that ends at `at`. The text before an ellipsis
        may be the start of a secret. The text after an ellipsis may be the end of a secret.
        """
        forms = self._by_start.get(text[at : at + _MIN_TRUNCATED_LENGTH], ())
        for length, forms_of_length in forms:
            if text[at : at + length] in forms_of_length:
                return length
        if cut is None:
            return 0
        if cut.end() == at:
            return self._end_at(text, at)
        visible_part = text[at : cut.start()]
        if len(visible_part) >= _MIN_TRUNCATED_LENGTH and any(
            form.startswith(visible_part)
            for length, forms_of_length in forms
            if length >= len(visible_part)
            for form in forms_of_length
        ):
            return len(visible_part)
        return 0

    def _end_at(self, text: str, at: int) -> int:
        """Return the length of the end of a secret at position `at`, or 0."""
        if self._by_end is None:
            ends: dict[str, set[str]] = {}
            for forms in self._by_start.values():
                for _, forms_of_length in forms:
                    for form in forms_of_length:
                        ends.setdefault(form[-_MIN_TRUNCATED_LENGTH:], set()).add(form)
            self._by_end = ends
        longest = max(forms[0][0] for forms in self._by_start.values())
        for end in range(min(len(text), at + longest), at + _MIN_TRUNCATED_LENGTH - 1, -1):
            visible_part = text[at:end]
            if any(
                form.endswith(visible_part)
                for form in self._by_end.get(visible_part[-_MIN_TRUNCATED_LENGTH:], ())
            ):
                return len(visible_part)
        return 0


_FormsByLength = tuple[tuple[int, frozenset[str]], ...]


def _by_length(forms: Iterable[str]) -> _FormsByLength:
    lengths: dict[int, set[str]] = {}
    for form in forms:
        lengths.setdefault(len(form), set()).add(form)
    return tuple((length, frozenset(lengths[length])) for length in sorted(lengths, reverse=True))


def _forms(secret: Any) -> Iterator[str]:
    if isinstance(secret, int | float):
        if len(str(secret)) >= _MIN_SECRET_DIGITS:
            yield str(secret)
        return
    if isinstance(secret, bytes):
        try:
            secret = secret.decode()
        except UnicodeDecodeError:
            yield from _forms_of_bytes(secret)
            return
    text = str(secret).strip()
    if len(text) < SHORTEST or text.lower() in _HARMLESS_WORDS:
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
        if len(line.strip()) >= _MIN_LINE_LENGTH:
            yield line.strip()


def _forms_of_bytes(secret: bytes) -> Iterator[str]:
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


_ANY_HINT: Final = re.compile("|".join(HINTS), re.IGNORECASE | re.ASCII)
#: Characters of a key. At most 60 are examined.
_KEY_SUFFIX: Final = re.compile(r"[\w.-]{0,60}")
_KEY_PREFIX: Final = re.compile(r"[\w.-]{0,60}\Z")
#: Separator between a command option and its value if the value is the next word.
_NEXT_WORD: Final = re.compile(r"[\"']?,?[ \t]+(?=[^\s-])")
_SEPARATOR: Final = re.compile(r"(?:\\*[\"'])?\]?[ \t]{0,8}(?:=>|:=|=|:(?!//))[ \t]{0,8}")
_OPENING_QUOTE: Final = re.compile(r"[bBrRuUfF]{0,2}(\\*)([\"'])")
_SCHEME: Final = re.compile(r"(?i)(?:bearer|basic|token|digest|negotiate|apikey)\s+(?=\S)")
_UNQUOTED_VALUE: Final = re.compile(r"(?:(?!&(?:amp;)?[\w.%-]+=)[^\s])+")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)([A-Za-z0-9._~+/=-]{8,})")
_URL_TOKEN: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)([^\s:/?#@\"'<>]{16,})(?=@)")
_PEM: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_EMPTY_VALUES: Final = frozenset({"none", "null", "true", "false", "***", "''", '""'})
#: Punctuation after a value that does not belong to the value.
_TRAILING_PUNCTUATION: Final = ".,:;!?)]}>\"'"
_CLOSING_BRACKETS: Final = {"(": ")", "[": "]", "{": "}"}


def masked(text: str) -> str:
    """Mask passwords of URLs, values of secret keys, access keys and private keys in `text`."""
    lowered = text.lower()
    if "wbe_" in lowered:
        text = ACCESS_KEY.sub(rf"\1{MASK}", text)
    if "://" in lowered:
        text = URL.sub(rf"\1{MASK}", text)
        text = _URL_TOKEN.sub(rf"\1{MASK}", text)
    if any(hint in lowered for hint in HINTS):
        text = _pairs(_PEM.sub(rf"\1{MASK}", _BEARER.sub(rf"\1\2{MASK}", text)))
    return text


def _pairs(text: str) -> str:
    pieces, copied_end, at = [], 0, 0
    while (hint := _ANY_HINT.search(text, at)) is not None:
        at, between = _value_start(text, hint)
        if between is None:
            continue
        begin, end = _span(text, between)
        if begin < end and text[begin:end].lower() not in _EMPTY_VALUES:
            pieces += [text[copied_end:begin], MASK]
            copied_end = end
        at = max(at, end)
    return "".join([*pieces, text[copied_end:]]) if pieces else text


def _value_start(text: str, hint: re.Match[str]) -> tuple[int, int | None]:
    """Return the end of the word around a hint and, after a secret key, the start of its value."""
    before = _KEY_PREFIX.search(text[max(0, hint.start() - 60) : hint.start()])
    after = _KEY_SUFFIX.match(text, hint.end())
    prefix, suffix = before[0] if before else "", after[0] if after else ""
    end = hint.end() + len(suffix)
    key = prefix + hint[0] + suffix
    if not is_secret_key(key):
        return end, None
    between = _SEPARATOR.match(text, end)
    if between is None and prefix.startswith("-"):
        between = _NEXT_WORD.match(text, end)
    return end, None if between is None else between.end()


def _span(text: str, at: int) -> tuple[int, int]:
    opened = _OPENING_QUOTE.match(text, at)
    if opened is not None:
        begin = opened.end()
        return begin, _closing(text, begin, opened[1] + opened[2])
    if text[at : at + 1] in _CLOSING_BRACKETS:
        return at, _balanced(text, at)
    scheme = _SCHEME.match(text, at)
    begin = at if scheme is None else scheme.end()
    plain = _UNQUOTED_VALUE.match(text, begin)
    if plain is None:
        return begin, begin
    return begin, begin + (len(plain[0].rstrip(_TRAILING_PUNCTUATION)) or len(plain[0]))


def _closing(text: str, at: int, quote: str) -> int:
    while at < len(text):
        if text.startswith(quote, at):
            return at
        at += 2 if text[at] == "\\" and len(quote) == 1 else 1
    return len(text)


def _balanced(text: str, at: int) -> int:
    pending: list[str] = []
    while at < len(text):
        mark = text[at]
        if mark in _CLOSING_BRACKETS:
            pending.append(_CLOSING_BRACKETS[mark])
        elif mark in "\"'":
            at = _closing(text, at + 1, mark)
        elif pending and mark == pending[-1]:
            pending.pop()
            if not pending:
                return at + 1
        at += 1
    return len(text)
