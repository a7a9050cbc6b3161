"""The settings of notifications."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib import parse

from wbengine._configuration import named_options
from wbengine._configuration.named_secrets import Secret
from wbengine._introspection import object_names
from wbengine._text import durations
from wbengine.notifications import _email, _event, _http
from wbengine.notifications._apprise import Apprise
from wbengine.notifications._hook import Hook
from wbengine.notifications._progress import HOOK
from wbengine.notifications._selection import Selection
from wbengine.notifications._sender import Sender
from wbengine.notifications._slack import Slack
from wbengine.notifications._webhook import Webhook
from wbengine.persistence import _listing

__all__ = ["TYPES", "Destination", "parse_settings"]

_SELECTION: Final = ("events", "flows", "tags", "backlog_after", "missed_after")
_GROUPING: Final = ("group_wait", "interval", "error_messages")
_COMMON: Final = (*_SELECTION, *_GROUPING)
_URL: Final = ("url_file", "url_variable")
_TIMED: Final = ("timeout", "ca_file")
#: Settings of a destination by its type, in addition to `type` and `_COMMON`.
_OF_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    "webhook": ("url", *_URL, "key_file", "key_variable", *_TIMED),
    "slack": (*_URL, *_TIMED),
    "email": (
        *("host", "port", "tls", "user", "password_file", "password_variable", "from", "to"),
        *_TIMED,
    ),
    "apprise": _URL,
}
#: Types of destinations.
TYPES: Final = tuple(_OF_TYPE)
_MAX_TIMEOUT_SECONDS: Final = 30.0
_MAX_GROUP_WAIT_SECONDS: Final = 600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Destination:
    """A place that receives messages.

    :ivar group_wait: seconds for which the first event waits for others.
    :ivar interval: minimum number of seconds between two messages.
    """

    name: str
    sender: Sender
    selection: Selection
    group_wait: float
    interval: float
    dashboard_url: str | None
    shows_errors: bool


def parse_settings(settings: Mapping[str, Any]) -> tuple[Destination, ...]:
    """Return the destinations of the table `notify`.

    :raises ValueError: if a setting is unknown or invalid, or there is no destination.
    :raises ImportError: if the hook cannot be imported, or a package is not installed.
    """
    named_options.check_known("notify", settings, (*_COMMON, "dashboard_url", "hook", "to"))
    to = settings.get("to", {})
    if not isinstance(to, Mapping):
        raise ValueError("notify.to must be a table of destinations")
    common = {name: settings[name] for name in _COMMON if name in settings}
    url = _dashboard_url(settings.get("dashboard_url"))
    destinations = [_destination(name, table, common, url) for name, table in to.items()]
    if settings.get("hook") is not None:
        destinations.append(_hook(settings["hook"], common, url))
    if not destinations:
        raise ValueError("notify must contain a destination (notify.to.NAME) or a hook")
    return tuple(destinations)


def _destination(
    name: str, table: Any, common: Mapping[str, Any], dashboard_url: str | None
) -> Destination:
    where = f"notify.to.{name}"
    object_names.check_label("Name of a destination", name)
    if name == HOOK:
        raise ValueError(f"{where}: this name is reserved for the setting hook")
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table")
    try:
        kind = named_options.choice("type", table.get("type"), TYPES)
        named_options.check_known(where, table, ("type", *_COMMON, *_OF_TYPE[kind]))
        sender = _SENDERS[kind](table)
        return _with_rules(name, sender, {**common, **table}, dashboard_url)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(where) else f"{where}: {text}") from error


def _hook(value: Any, common: Mapping[str, Any], dashboard_url: str | None) -> Destination:
    if not callable(value) and (not isinstance(value, str) or not value):
        raise ValueError(f"notify.hook must be 'module:function', got {value!r:.100}")
    # A program receives each event at once.
    destination = _with_rules(HOOK, Hook(value), common, dashboard_url)
    return dataclasses.replace(destination, group_wait=0.0, interval=0.0)


def _with_rules(
    name: str, sender: Sender, rules: Mapping[str, Any], dashboard_url: str | None
) -> Destination:
    kinds = _texts("events", rules.get("events", list(_event.KINDS)))
    for kind in kinds:
        named_options.choice("events", kind, _event.KINDS)
    tags = rules.get("tags", {})
    try:
        tags = _listing.check_tags(tags)
    except TypeError as error:
        raise ValueError(str(error)) from error
    selection = Selection(
        frozenset(kinds),
        _texts("flows", rules.get("flows", [])),
        tags,
        _seconds("backlog_after", rules.get("backlog_after", "10m"), 1.0),
        _seconds("missed_after", rules.get("missed_after", "5m"), 1.0),
    )
    return Destination(
        name,
        sender,
        selection,
        _seconds("group_wait", rules.get("group_wait", "10s"), 0.0, _MAX_GROUP_WAIT_SECONDS),
        _seconds("interval", rules.get("interval", "1m"), 0.0),
        dashboard_url,
        named_options.flag("error_messages", rules.get("error_messages", True)),
    )


def _webhook(table: Mapping[str, Any]) -> Webhook:
    key = _required("key", Secret.parse("key", table))
    return Webhook(_http.Endpoint(_url(table, may_be_plain=True), **_timed(table)), key)


def _slack(table: Mapping[str, Any]) -> Slack:
    return Slack(_http.Endpoint(_url(table), **_timed(table)))


def _apprise(table: Mapping[str, Any]) -> Apprise:
    return Apprise(_url(table))


def _mail(table: Mapping[str, Any]) -> _email.Email:
    tls: Any = named_options.choice("tls", table.get("tls", "starttls"), tuple(_email.TLS))
    port = table.get("port")
    return _email.Email(
        named_options.text("host", table.get("host")),
        None if port is None else named_options.whole("port", port, 1),
        tls=tls,
        user=None if table.get("user") is None else named_options.text("user", table["user"]),
        password=Secret.parse("password", table),
        sender=named_options.text("from", table.get("from")),
        recipients=_texts("to", table.get("to", [])),
        **_timed(table),
    )


_SENDERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Sender]]] = {
    "webhook": _webhook,
    "slack": _slack,
    "email": _mail,
    "apprise": _apprise,
}


def _url(table: Mapping[str, Any], *, may_be_plain: bool = False) -> Secret:
    return _required("url", Secret.parse("url", table, may_be_plain=may_be_plain))


def _required(name: str, secret: Secret | None) -> Secret:
    if secret is None:
        raise ValueError(f"{name}_file or {name}_variable is required")
    return secret


def _timed(table: Mapping[str, Any]) -> dict[str, Any]:
    ca_file = table.get("ca_file")
    if ca_file is not None:
        try:
            _http.tls_context(named_options.text("ca_file", ca_file))
        except OSError as error:
            raise ValueError(f"ca_file {ca_file!r} cannot be used: {error.strerror}") from error
    return {
        "timeout": _seconds("timeout", table.get("timeout", "10s"), 0.1, _MAX_TIMEOUT_SECONDS),
        "ca_file": ca_file,
    }


def _dashboard_url(value: Any) -> str | None:
    if value is None:
        return None
    url = named_options.text("dashboard_url", value)
    parts = parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"dashboard_url must be a URL of http or https, got {url!r:.100}")
    if parts.username is not None:
        raise ValueError("dashboard_url must not contain a user or password")
    return url.rstrip("/")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts: Sequence[Any] = value if isinstance(value, list | tuple) else [None]
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} must be a list of non-empty strings, got {value!r:.100}")
    return tuple(texts)


def _seconds(name: str, value: Any, least: float, most: float = float("inf")) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    seconds = durations.seconds(f"{value:f}" if is_number else str(value))
    if seconds is None or not least <= seconds <= most:
        limits = f"from {least:g} to {most:g} seconds" if most < float("inf") else "a duration"
        raise ValueError(f"{name} must be {limits}, such as '10s', got {value!r:.80}")
    return seconds
