"""Who may come in: a token, once, and then the cookie it was exchanged for."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LEAST_TOKEN", "Sessions", "check_token", "new_token"]

#: A token of fewer characters can be guessed.
LEAST_TOKEN: Final = 16
#: Seconds after which a browser is asked for the token again.
LIFETIME: Final = 24 * 3600.0


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> str:
    """`token`, if it can be one.

    :raises ValueError: it is too short, or has characters that do not survive a header.
    """
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"a token has at least {LEAST_TOKEN} characters, this one {len(token)}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token consists of printable ASCII characters, without blanks")
    return token


class Sessions:
    """Nothing is remembered: a cookie is its own proof, signed with a key made of the token.

    Without a token everybody may come in (who mounts the dashboard asks for himself); cookies then
    serve only to tell a form of ours from one of somebody else's.
    """

    def __init__(self, token: str | None, clock: Callable[[], float] = time.time) -> None:
        """:raises ValueError: `token` can be guessed, or cannot be sent."""
        self._token = None if token is None else check_token(token).encode()
        self._clock = clock
        key = secrets.token_bytes(32) if self._token is None else self._token
        self._key = hashlib.sha256(b"wbengine dashboard\0" + key).digest()
        #: Several dashboards of one host must not overwrite each other's cookies.
        self.cookie: Final = f"wbengine_{self._sign('cookie')[:8]}"

    @property
    def open_to_all(self) -> bool:
        return self._token is None

    def accepts(self, token: str | None) -> bool:
        """Whether this is the token; takes as long for each wrong one."""
        if self._token is None:
            return True
        return hmac.compare_digest((token or "").encode("utf-8", "replace"), self._token)

    def begin(self) -> str:
        """The value of a new cookie."""
        name = f"{int(self._clock())}.{secrets.token_urlsafe(12)}"
        return f"{name}.{self._sign('session', name)}"

    def knows(self, cookie: str | None) -> bool:
        """Whether it is one of ours, and not too old."""
        name, _, proof = (cookie or "").rpartition(".")
        if not _same(proof, self._sign("session", name)):
            return False
        age = self._clock() - int(name.partition(".")[0])
        return -60.0 < age < LIFETIME

    def form_token(self, cookie: str) -> str:
        """What the forms of this visitor carry, so that nobody else's form passes for one."""
        return self._sign("form", cookie)

    def knows_form(self, cookie: str | None, token: str | None) -> bool:
        return cookie is not None and _same(token or "", self.form_token(cookie))

    def _sign(self, *words: str) -> str:
        told = "\0".join(words).encode("utf-8", "replace")
        return hmac.new(self._key, told, hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
