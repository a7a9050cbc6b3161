"""Common parts of the kinds of transports through a database. It imports no driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wbengine._configuration import named_options
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine.transports._broker import Broker
from wbengine.transports._kinds import BrokerKind, Target, check_options

#: Minimum of `dead_after`: consumers report each second, and one report may be late.
_MIN_DEAD_AFTER_SECONDS: Final = 1.5


@dataclass(frozen=True)
class SQLOptions:
    """Options of the transport. Options of the database are in the URL."""

    dead_after: float = named_options.option(
        10.0, "Seconds of silence after which the messages of a consumer are requeued."
    )


class SQLKind(BrokerKind):
    """Queues in a database. The place is a `_sql_session.Place`."""

    options = SQLOptions
    ledger = "wbengine.transports._sql.sql_ledger:of_broker"
    has_rows = True
    #: The driver, which is also the name of its package, and the extra that installs it.
    driver: ClassVar[str]
    extra: ClassVar[installing.Extra]
    #: Name of the class of the broker.
    broker: ClassVar[str]

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        check_options(self, options)
        dead_after = options.get("dead_after", _MIN_DEAD_AFTER_SECONDS)
        if not isinstance(dead_after, int | float) or not dead_after >= _MIN_DEAD_AFTER_SECONDS:
            raise ValueError(
                f"dead_after must be at least {_MIN_DEAD_AFTER_SECONDS} seconds, got {dead_after!r}"
            )
        if url is None:
            raise ValueError(f"The URL of a database is missing: {self.name}://USER@HOST/DATABASE")
        target = Target(url, self.name, self, options)
        self.place(target)
        return target

    def place(self, target: Target) -> Any:
        try:
            object_names.load(f"{self.driver}:Error")
            place = object_names.load("wbengine.transports._sql.sql_session:Place")
        except ImportError as error:
            message = installing.needs(f"transport {self.name!r}", self.driver, self.extra)
            raise ValueError(message) from error
        return place.parse(target.url)

    def shown(self, target: Target) -> str:
        return str(self.place(target).shown)

    def check(self, target: Target) -> bool:
        self.place(target).check()
        return super().check(target)

    def open(self, target: Target) -> Broker:
        options = SQLOptions(**target.options)
        broker: Broker = object_names.load(self.broker)(
            self.place(target), target.rows, options.dead_after
        )
        return broker

    def find(self, error: BaseException) -> BaseException | None:
        """Return the error of the driver, which may be the cause of another one, or None."""
        return next((each for each in _causes(error) if self.is_own(each)), None)

    def is_own(self, error: BaseException) -> bool:
        """Return whether the driver has raised an error."""
        return type(error).__module__.partition(".")[0] == self.driver


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__
