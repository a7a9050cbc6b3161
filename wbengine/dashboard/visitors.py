"""Who may do what: visitors with a name and a role, by the tokens that they show."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from wbengine import _names

__all__ = [
    "ADMIN",
    "OPERATOR",
    "PROXY",
    "ROLES",
    "VIEWER",
    "Visitor",
    "check_token",
    "of_request",
    "parse_users",
]

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
#: Each may do what those before it may: look; suspend, resume, retry, revert and cancel flows;
#: drain workers.
ROLES: Final = (VIEWER, OPERATOR, ADMIN)
#: It may say for whom it asks.
PROXY: Final = "proxy"

_NAME: Final = frozenset(f"{string.ascii_letters}{string.digits}.@_-")

#: A token of fewer characters can be guessed.
LEAST_TOKEN: Final = 16


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who asks for pages; without a `name`, somebody who knows the one token."""

    name: str = ""
    role: str = ADMIN

    def __post_init__(self) -> None:
        """:raises ValueError: a line of a log could not hold the name, or there is no such role."""
        if self.name:
            check_name(self.name)
        check_role(self.role, (*ROLES, PROXY))

    def may(self, role: str) -> bool:
        """Whether that role is this visitor's, or less than it."""
        return self.role in ROLES and ROLES.index(self.role) >= ROLES.index(role)


def of_request(request: Request) -> Visitor | None:
    """Who asks, as the guard found; None: nobody who may come in."""
    found: Visitor | None = getattr(request.state, "visitor", None)
    return found


def check_token(token: str) -> str:
    """`token`, if it can be one.

    :raises ValueError: it is too short, or has characters that do not survive a header.
    """
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"a token has at least {LEAST_TOKEN} characters, this one {len(token)}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token consists of printable ASCII characters, without blanks")
    return token


def check_name(name: str) -> str:
    """`name`, if a line of a log can hold it.

    :raises ValueError: it is empty, too long, or has other characters than letters, digits and
        ``.@_-``.
    """
    if not 0 < len(name) <= 64 or not _NAME.issuperset(name):
        raise ValueError(f"user={name!r:.80} is no name of up to 64 letters, digits and .@_-")
    return name


def check_role(role: str, known: tuple[str, ...] = ROLES) -> str:
    """:raises ValueError: there is no such role."""
    if role not in known:
        near = _names.hint(role, known)
        raise ValueError(f"role={role!r:.40}{near} is none of {', '.join(known)}")
    return role


def parse_users(text: str) -> Mapping[str, Visitor]:
    """Token -> visitor, of lines with a name, a role and a token each; a ``#`` at the beginning of
    a word begins a comment.

    :raises ValueError: a line is something else, or a token is in two of them; the text names the
        line, and never a token.
    """
    found: dict[str, Visitor] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        try:
            if len(words) != 3:
                raise ValueError(f"there are {len(words)} words, not a name, a role and a token")
            visitor = Visitor(check_name(words[0]), words[1])
            if check_token(words[2]) in found:
                raise ValueError(f"{visitor.name!r} has the token of {found[words[2]].name!r}")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        found[words[2]] = visitor
    if not found:
        raise ValueError("there is no user in it")
    return found
