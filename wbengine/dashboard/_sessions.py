"""Tokens, and the signed cookies that represent them in browsers."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from wbengine.dashboard import _visitors
from wbengine.dashboard._signatures import are_equal, pack, sign, unpack
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

    The cookie of a visitor whom a provider signed in contains the name, role and tags until its
    end. It is signed with `provider_key`.
    """

    def __init__(
        self,
        users: Mapping[str, Visitor] | None,
        clock: Callable[[], float] = time.time,
        *,
        provider_key: str | None = None,
    ) -> None:
        """Derive the name of the cookie from the tokens and the key.

        :raises ValueError: if there are no users, or a token is too short or not printable ASCII.
        """
        if users is not None and not users:
            raise ValueError("users must contain at least one user")
        self.open_to_all: Final = users is None and provider_key is None
        #: Whether visitors can enter a token.
        self.has_tokens: Final = users is not None
        visitors_by_token = {new_token(): Visitor()} if self.open_to_all else users or {}
        self._users = {
            sign(_visitors.check_token(token), "mark")[:16]: (token, visitor)
            for token, visitor in visitors_by_token.items()
        }
        self._clock = clock
        self._provider_key = provider_key
        self._provider_mark = sign(provider_key, "mark")[:16] if provider_key else None
        marks = " ".join([*sorted(self._users), self._provider_mark or ""]).rstrip().encode()
        #: The name differs between dashboards, so that they do not overwrite each other's cookies.
        self.cookie: Final = f"wbengine_{hashlib.sha256(marks).hexdigest()[:8]}"

    def visitor_of_token(self, token: str | None) -> Visitor | None:
        """Return the visitor of this token, or None. Takes the same time for each wrong token."""
        if self.open_to_all:
            return Visitor()
        match = None
        for expected, visitor in self._users.values():
            if are_equal(token or "", expected):
                match = visitor
        return match

    def new_cookie(self, token: str | None) -> str:
        """Return a new cookie for the user of `token`; None if there are no users."""
        ((only, _),) = self._users.values() if token is None else [(token, None)]
        name = f"{int(self._clock())}.{secrets.token_urlsafe(12)}.{sign(only, 'mark')[:16]}"
        return f"{name}.{sign(only, 'session', name)}"

    def new_provider_cookie(self, visitor: Visitor, seconds: float) -> str:
        """Return a new cookie for a visitor whom the provider signed in.

        :param seconds: time until it expires.
        """
        assert self._provider_key is not None
        ends = self._clock() + seconds
        nonce = secrets.token_urlsafe(12)
        text = pack(
            ends, nonce, visitor.name, visitor.role, dict(visitor.tags), list(visitor.queues)
        )
        name = f"{text}.{self._provider_mark}"
        return f"{name}.{sign(self._provider_key, 'session', name)}"

    def is_from_provider(self, cookie: str | None) -> bool:
        """Return whether the provider signed in the visitor of a valid cookie."""
        user = self._user_of_cookie(cookie)
        return user is not None and user[0] == self._provider_key

    def visitor_of_cookie(self, cookie: str | None) -> Visitor | None:
        """Return the visitor of a cookie, or None if it is invalid or expired."""
        user = self._user_of_cookie(cookie)
        return None if user is None else user[1]

    def form_token(self, cookie: str) -> str | None:
        """Return a value that all forms of this visitor contain. Forms of other sites lack it."""
        user = self._user_of_cookie(cookie)
        return None if user is None else sign(user[0], "form", cookie)

    def is_valid_form_token(self, cookie: str | None, token: str | None) -> bool:
        expected = None if cookie is None else self.form_token(cookie)
        return expected is not None and are_equal(token or "", expected)

    def _user_of_cookie(self, cookie: str | None) -> tuple[str, Visitor] | None:
        name, _, proof = (cookie or "").rpartition(".")
        mark = name.rpartition(".")[2]
        if self._provider_key is not None and mark == self._provider_mark:
            return self._visitor_of_provider(self._provider_key, name, proof)
        user = self._users.get(mark)
        if user is None or not are_equal(proof, sign(user[0], "session", name)):
            return None
        age = self._clock() - int(name.partition(".")[0])
        return user if -60.0 < age < COOKIE_SECONDS else None

    def _visitor_of_provider(self, key: str, name: str, proof: str) -> tuple[str, Visitor] | None:
        if not are_equal(proof, sign(key, "session", name)):
            return None
        fields = unpack(name.partition(".")[0])
        if len(fields) != 6:  # A cookie of an earlier release.
            return None
        ends, _, visitor_name, role, tags, queues = fields
        visitor = Visitor(visitor_name, role, tags, tuple(queues))
        return (key, visitor) if self._clock() < ends else None
