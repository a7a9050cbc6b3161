"""What is to be kept secret: which keys look like it, and what they hold."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from wbengine.types import failure as ft

__all__ = ["HINTS", "URL", "found_in", "is_secret_key"]

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
            yield from _in_text(value.decode("utf-8", "replace"), secret)
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
