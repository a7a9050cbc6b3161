"""The kind of the transport through Redis. It does not import the client of Redis."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from wbengine._configuration import named_options, tls_options
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine._redis import client_options
from wbengine.transports import _reasons
from wbengine.transports._broker import Broker
from wbengine.transports._kinds import BrokerKind, Target, check_dead_after, check_options

NAMES: Final = ("redis", "rediss")


@dataclass(frozen=True)
class RedisOptions(client_options.ClientOptions):
    """Options of the transport. All except `dead_after` are also options of the URL."""

    prefix: str | None = named_options.option(None, "Part of all keys: ``wbe:{PREFIX}:``.")
    dead_after: float = named_options.option(
        10.0, "Seconds of silence after which the messages of a consumer are requeued."
    )


class RedisKind(BrokerKind):
    """Queues in a Redis. The place is a `redis_link.Place`."""

    name = "redis"
    options = RedisOptions
    ledger = "wbengine.transports._redis.redis_ledger:of_broker"
    has_rows = True
    diagnosis = "wbengine.diagnosis._redis_checks"

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        name = transport or (url or "").partition("://")[0]
        # A missing client is reported before other problems.
        try:
            object_names.load(_BROKER)
        except ImportError as error:
            message = installing.needs(f"transport {name!r}", "redis-py", "redis")
            raise ValueError(message) from error
        check_options(self, options)
        check_dead_after(options)
        if exchange is not None:
            options.setdefault("prefix", exchange)
        target = Target(url or f"{name}://", self.name, self, options)
        self.place(target)
        return target

    def place(self, target: Target) -> Any:
        return object_names.load(_PLACE).parse(target.url, target.options)

    def shown(self, target: Target) -> str:
        return str(self.place(target).shown)

    def check(self, target: Target) -> bool:
        tls_options.check_files(self.place(target).settings)
        return super().check(target)

    def open(self, target: Target) -> Broker:
        dead_after = target.options.get("dead_after", RedisOptions.dead_after)
        broker: Broker = object_names.load(_BROKER)(self.place(target), target.rows, dead_after)
        return broker

    def quick_options(self, seconds: float) -> dict[str, Any]:
        return dict.fromkeys(client_options.TIMEOUTS, min(seconds, 5.0))

    def explain(self, error: BaseException) -> str | None:
        if not _is_of_redis(error):
            return None
        match type(error).__name__:
            case "AuthenticationError":
                return f"it refuses this user or password ({error})"
            case "TimeoutError":
                return "it does not answer"
            case "ConnectionError" if isinstance(error.__context__, OSError):
                return _reasons.explain_network_error(error.__context__)
        return None

    def may_pass(self, error: BaseException) -> bool:
        own = next(filter(_is_of_redis, _reasons.causes(error)), None)
        if own is None or self.is_refusal(own):
            return False
        if isinstance(own.__context__, ssl.SSLCertVerificationError):
            return False
        return _is_any(own, _PASSING_ERRORS) or str(own).startswith(_PASSING_REPLIES)

    def is_refusal(self, error: BaseException) -> bool:
        return _is_any(error, _REFUSALS)


def _is_of_redis(error: BaseException) -> bool:
    return type(error).__module__ == "redis.exceptions"


def _is_any(error: BaseException, names: Collection[str]) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


_REFUSALS: Final = ("AuthenticationError", "NoPermissionError")
#: Errors of a Redis that is unreachable, paused, loading its data, read-only or full.
_PASSING_ERRORS: Final = ("ConnectionError", "TimeoutError", "ReadOnlyError", "OutOfMemoryError")
#: Starts of other replies of a Redis that cannot write now.
_PASSING_REPLIES: Final = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "BUSY ")
_BROKER: Final = "wbengine.transports._redis.redis_broker:RedisBroker"
_PLACE: Final = "wbengine.transports._redis.redis_link:Place"
KIND: Final = RedisKind()
