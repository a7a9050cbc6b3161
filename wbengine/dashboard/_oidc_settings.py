"""The settings of the sign-in with OpenID Connect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from wbengine._configuration import named_options
from wbengine._configuration.named_secrets import Secret
from wbengine._text import durations
from wbengine.dashboard import _http_headers, _roles, _urls, _visitors
from wbengine.jobs import _places
from wbengine.notifications import _http
from wbengine.persistence import _listing

__all__ = [
    "NAME_CLAIMS", "ROLES_CLAIM", "SCOPES", "SESSION", "OidcSettings", "RoleRule", "parse_settings",
]  # fmt: skip

SCOPES: Final = ("openid", "profile", "email")
ROLES_CLAIM: Final = "groups"
#: Claims with the name of the user; the first one that the provider sends counts.
NAME_CLAIMS: Final = ("preferred_username", "email", "sub")
SESSION: Final = "12h"

_MIN_SESSION_SECONDS: Final = 60.0
_MAX_SESSION_SECONDS: Final = 30 * 86_400.0
#: Browsers ignore cookies of more than 4,096 bytes.
_MAX_TAGS_CHARS: Final = 2_000
_NAMES: Final = (
    "issuer", "client_id", "client_secret_file", "client_secret_variable", "dashboard_url", "label",
    "scopes", "roles_claim", "name_claim", "default_role", "session", "roles", "ca_file",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoleRule:
    """The role of users that have a value in the claim with the roles.

    :ivar tags: they have access only to flows with these tags.
    :ivar queues: they have access only to flows of these queues; empty: of all.
    """

    value: str
    role: str
    tags: Mapping[str, str]
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """A provider of OpenID Connect, and the rights of its users.

    :ivar rules: the first rule that matches a user counts.
    :ivar default_role: the role of users that no rule matches; None: they are refused.
    """

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    dashboard_url: str
    label: str
    scopes: tuple[str, ...]
    roles_claim: str
    name_claims: tuple[str, ...]
    default_role: str | None
    session_seconds: float
    rules: tuple[RoleRule, ...]
    ca_file: str | None

    @property
    def session_key(self) -> str:
        """The secret that signs sessions: equal settings share it, other settings end sessions."""
        rules = [
            (rule.value, rule.role, sorted(rule.tags.items()), rule.queues) for rule in self.rules
        ]
        values = [
            self.client_secret, self.issuer, self.client_id, self.dashboard_url, self.roles_claim,
            self.name_claims, self.default_role, rules,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    @property
    def is_secure(self) -> bool:
        """Whether browsers use TLS."""
        return self.dashboard_url.startswith("https:")

    @property
    def redirect_uri(self) -> str:
        """The URL to which the provider sends browsers after a sign-in."""
        return f"{self.dashboard_url}{_urls.SIGN_IN_CALLBACK}"


def parse_settings(settings: Mapping[str, Any]) -> OidcSettings:
    """Return the settings of the table `oidc`.

    :raises ValueError: if a setting is unknown, missing or invalid. The message does not contain
        the secret.
    """
    named_options.check_known("oidc", settings, _NAMES)
    issuer = _url("issuer", settings.get("issuer"))
    secret = Secret.parse("client_secret", settings)
    if secret is None:
        raise ValueError("client_secret_file or client_secret_variable is required")
    client_secret = secret.read()
    if len(client_secret) < _visitors.MIN_TOKEN_CHARS:
        raise ValueError(
            f"the client secret must have at least {_visitors.MIN_TOKEN_CHARS} characters, got"
            f" {len(client_secret)}: it signs sessions"
        )
    name_claim = _optional_text("name_claim", settings)
    default_role = settings.get("default_role")
    rules = tuple(_rule(number, table) for number, table in enumerate(_tables(settings), 1))
    if not rules and default_role is None:
        raise ValueError("roles or default_role is required: otherwise all users are refused")
    return OidcSettings(
        issuer=issuer,
        client_id=named_options.text("client_id", settings.get("client_id")),
        client_secret=client_secret,
        dashboard_url=_url("dashboard_url", settings.get("dashboard_url")).rstrip("/"),
        label=_optional_text("label", settings) or urlsplit(issuer).netloc,
        scopes=_scopes(settings.get("scopes", SCOPES)),
        roles_claim=_optional_text("roles_claim", settings) or ROLES_CLAIM,
        name_claims=NAME_CLAIMS if name_claim is None else (name_claim,),
        default_role=None if default_role is None else _roles.check_role(str(default_role)),
        session_seconds=_session_seconds(settings.get("session", SESSION)),
        rules=rules,
        ca_file=_ca_file(settings),
    )


def _url(name: str, value: Any) -> str:
    """Return a URL that protects the sign-in: of https, or on this host."""
    text = named_options.text(name, value)
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{name} must be a URL such as https://login.example.com, got {text!r}")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _http_headers.LOOPBACK):
        raise ValueError(f"{name} must be a URL of https, or of http on this host, got {text!r}")
    return text


def _ca_file(settings: Mapping[str, Any]) -> str | None:
    ca_file = _optional_text("ca_file", settings)
    if ca_file is not None:
        try:
            _http.tls_context(ca_file)
        except OSError as error:
            raise ValueError(f"ca_file {ca_file!r} cannot be used: {error.strerror}") from error
    return ca_file


def _optional_text(name: str, settings: Mapping[str, Any]) -> str | None:
    value = settings.get(name)
    return None if value is None else named_options.text(name, value)


def _scopes(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple)
    if not is_list or not all(isinstance(each, str) and each and " " not in each for each in value):
        raise ValueError(f"scopes must be a list of words, got {value!r:.100}")
    if "openid" not in value:
        raise ValueError(f"scopes must contain 'openid', got {value!r:.100}")
    return tuple(value)


def _session_seconds(value: Any) -> float:
    seconds = durations.seconds(str(value))
    if seconds is None or not _MIN_SESSION_SECONDS <= seconds <= _MAX_SESSION_SECONDS:
        raise ValueError(f"session must be a duration from '1m' to '30d', got {value!r:.80}")
    return seconds


def _tables(settings: Mapping[str, Any]) -> list[Any]:
    tables = settings.get("roles", [])
    if not isinstance(tables, list | tuple):
        raise ValueError(f"roles must be a list of tables, got {tables!r:.100}")
    return list(tables)


def _rule(number: int, table: Any) -> RoleRule:
    where = f"roles.{number}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table with value and role, got {table!r:.100}")
    try:
        named_options.check_known(where, table, ("value", "role", "tags", "queues"))
        role = _roles.check_role(named_options.text("role", table.get("role")))
        tags = _listing.check_tags(table.get("tags", {}))
        queues = _queues(table)
        if (length := len(json.dumps([tags, queues]))) > _MAX_TAGS_CHARS:
            raise ValueError(
                f"tags and queues must have at most {_MAX_TAGS_CHARS} characters, which a cookie"
                f" can contain, got {length}"
            )
        return RoleRule(named_options.text("value", table.get("value")), role, tags, queues)
    except (TypeError, ValueError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(where) else f"{where}: {text}") from error


def _queues(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the queues of a rule. An empty list would give access to all queues."""
    if "queues" not in table:
        return ()
    queues = table["queues"]
    if not isinstance(queues, list) or not queues:
        raise ValueError(f"queues must be a list of names of queues, got {queues!r:.100}")
    return _places.check_queues(queues)
