"""Who may come in: a token, once, and then the cookie it was exchanged for."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from wbengine.dashboard import visitors
from wbengine.dashboard.visitors import Visitor

__all__ = ["Sessions", "new_token"]

#: Seconds after which a browser is asked for the token again.
LIFETIME: Final = 24 * 3600.0


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(32)


class Sessions:
    """Nothing is remembered: a cookie is its own proof, signed with a key made of its user's token.

    It says whose it is by a mark of that token; name and role are those that the user has now.
    Without tokens everybody may come in (who mounts the dashboard asks for himself); cookies then
    serve only to tell a form of ours from one of somebody else's.
    """

    def __init__(
        self, users: Mapping[str, Visitor] | None, clock: Callable[[], float] = time.time
    ) -> None:
        """:raises ValueError: there are no users, or a token can be guessed, or cannot be sent."""
        if users is not None and not users:
            raise ValueError("there are no users: nobody could come in")
        self.open_to_all: Final = users is None
        known = {new_token(): Visitor()} if users is None else users
        self._users = {
            _signed(visitors.check_token(token), "mark")[:16]: (token, visitor)
            for token, visitor in known.items()
        }
        self._clock = clock
        marks = " ".join(sorted(self._users)).encode()
        #: Several dashboards of one host must not overwrite each other's cookies.
        self.cookie: Final = f"wbengine_{hashlib.sha256(marks).hexdigest()[:8]}"

    def accepts(self, token: str | None) -> Visitor | None:
        """Whose token this is; takes as long for each wrong one."""
        if self.open_to_all:
            return Visitor()
        found = None
        for known, visitor in self._users.values():
            if _same(token or "", known):
                found = visitor
        return found

    def begin(self, token: str | None) -> str:
        """The value of a new cookie of the user of `token`; None, where everybody may come in."""
        ((only, _),) = self._users.values() if token is None else [(token, None)]
        name = f"{int(self._clock())}.{secrets.token_urlsafe(12)}.{_signed(only, 'mark')[:16]}"
        return f"{name}.{_signed(only, 'session', name)}"

    def knows(self, cookie: str | None) -> Visitor | None:
        """Whose it is, if it is one of ours, and not too old."""
        found = self._found(cookie)
        return None if found is None else found[1]

    def form_token(self, cookie: str) -> str | None:
        """What the forms of this visitor carry, so that nobody else's form passes for one."""
        found = self._found(cookie)
        return None if found is None else _signed(found[0], "form", cookie)

    def knows_form(self, cookie: str | None, token: str | None) -> bool:
        expected = None if cookie is None else self.form_token(cookie)
        return expected is not None and _same(token or "", expected)

    def _found(self, cookie: str | None) -> tuple[str, Visitor] | None:
        name, _, proof = (cookie or "").rpartition(".")
        user = self._users.get(name.rpartition(".")[2])
        if user is None or not _same(proof, _signed(user[0], "session", name)):
            return None
        age = self._clock() - int(name.partition(".")[0])
        return user if -60.0 < age < LIFETIME else None


def _signed(token: str, *words: str) -> str:
    key = hashlib.sha256(f"wbengine dashboard\0{token}".encode()).digest()
    return hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
