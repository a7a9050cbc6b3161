"""Checks of settings that name a transport, broker, store, ledger or job board.

The checks do not connect. They include settings that the command does not use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from wbengine import exceptions
from wbengine._cli import config
from wbengine._introspection import object_names

if TYPE_CHECKING:
    from wbengine._cli.config import Settings

__all__ = ["check"]

#: Kinds that are accepted without loading their modules, which would be as slow as a short command.
_BROKERS: Final = ("redis", "rediss", "amqp", "amqps", "filesystem", "memory")
_DATABASES: Final = ("sqlite", "mysql", "postgresql")
_STORES: Final = ("dir", "file", "memory", *_DATABASES)
_LEDGERS: Final = ("dir", "memory", "redis", "rediss", *_DATABASES)
_BOARDS: Final = ("dir", "file", "redis", "rediss", "zookeeper", "etcd", *_DATABASES)
#: Names that are valid without a URL.
_BARE_NAMES: Final = ("memory", "sql", "none")


def check(settings: Settings) -> None:
    """Reject settings with an unknown kind, or a URL with an option that its kind does not have.

    :raises Failed: if a setting is invalid; the message contains the setting and the most similar
        kind or option.
    """
    for name, (kinds, check_kind) in _CHECKS.items():
        value = getattr(settings, name)
        if settings.origins[name] == config.DEFAULT or not value or _is_plain(value, kinds):
            continue
        with (
            settings.failing(name, ValueError, TypeError, exceptions.NotFound),
            _ignoring_missing_packages(),
        ):
            check_kind(settings)


def _is_plain(value: object, kinds: tuple[str, ...]) -> bool:
    if not isinstance(value, str):
        return False
    kind, mark, rest = value.partition(":")
    return kind in kinds and "?" not in rest if mark else value in _BARE_NAMES


@contextlib.contextmanager
def _ignoring_missing_packages() -> Iterator[None]:
    try:
        yield
    except ImportError:
        return
    except ValueError as error:
        if not isinstance(error.__cause__, ImportError):
            raise


def _check_broker(settings: Settings) -> None:
    from wbengine.transports import _kinds as kinds

    kinds.check_names(settings.url, settings.transport, settings.transport_options)


def _check_store(settings: Settings) -> None:
    from wbengine.persistence import backends

    with contextlib.closing(backends.fetch(settings.store)):
        pass


def _check_ledger(settings: Settings) -> None:
    from wbengine.engines.worker_based import ledger

    ledger.check_place(settings.ledger)


def _check_board(settings: Settings) -> None:
    from wbengine.jobs import backends

    with contextlib.closing(backends.fetch("check", settings.board or "")):
        pass


def _check_payloads(settings: Settings) -> None:
    object_names.load("wbengine._payloads:opened")(settings.payloads)


_CHECKS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Settings], None]]]] = {
    "url": (_BROKERS, _check_broker),
    "transport": (_BROKERS, _check_broker),
    "transport_options": ((), _check_broker),
    "persistence": (_STORES, _check_store),
    "ledger": (_LEDGERS, _check_ledger),
    "payloads": (("file", "memory", "s3"), _check_payloads),
    "board": (_BOARDS, _check_board),
}
