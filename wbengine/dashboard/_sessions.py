"""Tokens, and the signed cookies that represent them in browsers."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from wbengine.dashboard import _visitors
from wbengine.dashboard._visitors import Visitor

__all__ = ["Sessions", "new_token"]

COOKIE_SECONDS: Final = 24 * 3600.0


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(32)


class Sessions:
    """Checks of tokens and cookies, without stored sessions.

    A cookie contains a hash of its user's token and is signed with the token. Name and role are
    always the current ones of the user. Without users, every client has access (the application
    that mounts the dashboard authenticates), and cookies only protect forms against other sites.
    """

    def __init__(
        self, users: Mapping[str, Visitor] | None, clock: Callable[[], float] = time.time
    ) -> None:
        """Derive the name of the cookie from the tokens.

        :raises ValueError: if there are no users, or a token is too short or not printable ASCII.
        """
        if users is not None and not users:
            raise ValueError("users must contain at least one user")
        self.open_to_all: Final = users is None
        visitors_by_token = {new_token(): Visitor()} if users is None else users
        self._users = {
            _sign(_visitors.check_token(token), "mark")[:16]: (token, visitor)
            for token, visitor in visitors_by_token.items()
        }
        self._clock = clock
        marks = " ".join(sorted(self._users)).encode()
        #: The name differs between dashboards, so that they do not overwrite each other's cookies.
        self.cookie: Final = f"wbengine_{hashlib.sha256(marks).hexdigest()[:8]}"

    def visitor_of_token(self, token: str | None) -> Visitor | None:
        """Return the visitor of this token, or None. Takes the same time for each wrong token."""
        if self.open_to_all:
            return Visitor()
        match = None
        for expected, visitor in self._users.values():
            if _equal(token or "", expected):
                match = visitor
        return match

    def new_cookie(self, token: str | None) -> str:
        """Return a new cookie for the user of `token`; None if there are no users."""
        ((only, _),) = self._users.values() if token is None else [(token, None)]
        name = f"{int(self._clock())}.{secrets.token_urlsafe(12)}.{_sign(only, 'mark')[:16]}"
        return f"{name}.{_sign(only, 'session', name)}"

    def visitor_of_cookie(self, cookie: str | None) -> Visitor | None:
        """Return the visitor of a cookie, or None if it is invalid or expired."""
        user = self._user_of_cookie(cookie)
        return None if user is None else user[1]

    def form_token(self, cookie: str) -> str | None:
        """Return a value that all forms of this visitor contain. Forms of other sites lack it."""
        user = self._user_of_cookie(cookie)
        return None if user is None else _sign(user[0], "form", cookie)

    def is_valid_form_token(self, cookie: str | None, token: str | None) -> bool:
        expected = None if cookie is None else self.form_token(cookie)
        return expected is not None and _equal(token or "", expected)

    def _user_of_cookie(self, cookie: str | None) -> tuple[str, Visitor] | None:
        name, _, proof = (cookie or "").rpartition(".")
        user = self._users.get(name.rpartition(".")[2])
        if user is None or not _equal(proof, _sign(user[0], "session", name)):
            return None
        age = self._clock() - int(name.partition(".")[0])
        return user if -60.0 < age < COOKIE_SECONDS else None


def _sign(token: str, *words: str) -> str:
    key = hashlib.sha256(f"wbengine dashboard\0{token}".encode()).digest()
    return hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
