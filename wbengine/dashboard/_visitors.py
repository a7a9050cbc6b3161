"""Visitors of the dashboard: their names, and the file with their tokens."""

from __future__ import annotations

import re
import string
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wbengine.dashboard import _roles, _urls
from wbengine.jobs import _places
from wbengine.persistence import _access_keys
from wbengine.persistence import _listing as listings

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = [
    "KEY_PREFIX", "MIN_TOKEN_CHARS", "PROVIDER_PREFIX", "Visitor", "check_name", "check_token",
    "may_visit", "name_at_provider", "of_request", "parse_tags", "parse_users", "restriction_of",
    "role_of",
]  # fmt: skip

#: Start of the names of visitors with access keys. No user has such a name.
KEY_PREFIX: Final = "key:"
#: Start of the names of visitors that a provider of OpenID Connect signed in.
PROVIDER_PREFIX: Final = "oidc:"
_NAME: Final = frozenset(f"{string.ascii_letters}{string.digits}.@_-")
#: Characters of names at a provider. Others are percent-encoded.
_PROVIDER_NAME: Final = _NAME | frozenset("+~%")
_MAX_PROVIDER_NAME_CHARS: Final = 200
#: Start of the words of queues in the file of users.
_QUEUE_PREFIX: Final = "queue:"

MIN_TOKEN_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Visitor:
    """A client with access. The name is empty if all clients use the same token.

    :ivar tags: the visitor has access only to flows with all of these tags.
    :ivar queues: the visitor has access only to flows of these queues; empty: of all.
    """

    name: str = ""
    role: str = _roles.ADMIN
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    queues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        :raises ValueError: if one of them is not valid.
        """
        if self.name.startswith(PROVIDER_PREFIX):
            _check_provider_name(self.name)
        elif self.name:
            check_name(self.name.removeprefix(KEY_PREFIX))
        listings.check_tags(self.tags)
        _places.check_queues(self.queues)
        _roles.check_role(self.role, (*_roles.ROLES, _roles.PROXY))


def of_request(request: Request) -> Visitor | None:
    """Return the visitor that the guard identified; None: no access."""
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    return visitor


def role_of(request: Request) -> str | None:
    """Return the role of the visitor; None: no access."""
    visitor = of_request(request)
    return None if visitor is None else visitor.role


def restriction_of(request: Request) -> tuple[tuple[str, ...], ...]:
    """Return the tags and queues of the visitor, who has access only to flows with them.

    Visitors with equal ones have access to the same flows.
    """
    visitor = of_request(request)
    if visitor is None:
        return ()
    return (*sorted(visitor.tags.items()), *((queue,) for queue in sorted(visitor.queues)))


def may_visit(request: Request) -> bool:
    """Return whether the path is one that the visitor may use, by its tags and queues."""
    visitor = of_request(request)
    if not restriction_of(request) or _urls.is_about_flows(request):
        return True
    # The numbers of a queue concern all of its flows.
    return visitor is not None and not visitor.tags and _urls.shows_queues(request)


def check_token(token: str) -> str:
    """Return `token`.

    :raises ValueError: if it is too short, or is not printable ASCII without spaces.
    """
    if len(token) < MIN_TOKEN_CHARS:
        raise ValueError(f"token must have at least {MIN_TOKEN_CHARS} characters, got {len(token)}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("token must consist of printable ASCII characters without spaces")
    if _access_keys.is_key(token):
        raise ValueError(
            f"token must not start with {_access_keys.PREFIX!r}, as access keys in the store do"
        )
    return token


def check_name(name: str, subject: str = "user") -> str:
    """Return `name`.

    :raises ValueError: if it is empty, too long, or has characters other than letters, digits and
        ``.@_-``.
    """
    if not 0 < len(name) <= 64 or not _NAME.issuperset(name):
        raise ValueError(
            f"{subject} must have 1 to 64 characters of letters, digits and .@_-, got {name!r:.80}"
        )
    return name


def name_at_provider(name: str) -> str:
    """Return the name of a visitor for a name at a provider of OpenID Connect.

    Different names remain different. Spaces, control characters and other characters that could
    change lines of logs are percent-encoded.

    :raises ValueError: if the name is empty or too long.
    """
    return _check_provider_name(f"{PROVIDER_PREFIX}{urllib.parse.quote(name, safe='@+')}")


def _check_provider_name(text: str) -> str:
    name = text.removeprefix(PROVIDER_PREFIX)
    if not 0 < len(name) <= _MAX_PROVIDER_NAME_CHARS or not _PROVIDER_NAME.issuperset(name):
        raise ValueError(
            f"name must have 1 to {_MAX_PROVIDER_NAME_CHARS} characters, percent-encoded, got"
            f" {name!r:.80}"
        )
    return text


def parse_users(text: str) -> Mapping[str, Visitor]:
    """Return visitors by token, from lines with a name, a role, a token and optional limits each.

    A limit is a tag ``KEY=VALUE`` or ``queue:NAME``. A ``#`` at the beginning of a word starts a
    comment.

    :raises ValueError: if a line is not valid, or two lines have the same token. The message has
        the number of the line and never a token.
    """
    users: dict[str, Visitor] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = re.sub(r"(^|\s)#.*", "", line).split()
        if not fields:
            continue
        try:
            if len(fields) < 3:
                raise ValueError(f"must have a name, a role and a token, got {len(fields)} words")
            tags, queues = _parse_limits(fields[3:])
            visitor = Visitor(check_name(fields[0]), fields[1], tags, queues)
            if check_token(fields[2]) in users:
                raise ValueError(
                    f"{visitor.name!r} must have another token than {users[fields[2]].name!r}"
                )
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        users[fields[2]] = visitor
    if not users:
        raise ValueError("must contain at least one user")
    return users


def _parse_limits(words: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the tags and the queues in words such as ``team=billing`` and ``queue:reports``."""
    of_queues, of_tags = list[str](), list[str]()
    for word in words:
        is_queue = word.startswith(_QUEUE_PREFIX) and "=" not in word
        (of_queues if is_queue else of_tags).append(word)
    try:
        queues = _places.check_queues(word.removeprefix(_QUEUE_PREFIX) for word in of_queues)
    except ValueError:  # Its message contains the word, which may be a part of a token.
        raise ValueError("queues must have the form queue:NAME") from None
    return parse_tags(of_tags), queues


def parse_tags(words: Iterable[str]) -> dict[str, str]:
    """Return the tags in words such as ``team=billing``.

    :raises ValueError: if a word is not a valid tag, or two have the same key. A word may be a part
        of a token, so the message does not contain it.
    """
    tags: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or key in tags:
            raise ValueError("tags must be different and have the form team=billing")
        tags[key] = value
    return tags
