"""The kind of the transport through PostgreSQL. It imports neither SQLAlchemy nor psycopg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from wbengine._configuration import named_options
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine.transports._broker import Broker
from wbengine.transports._kinds import BrokerKind, Target, check_options

_MODULE: Final = "wbengine.transports._postgresql"
#: Minimum of `dead_after`: consumers report each second, and one report may be late.
_MIN_DEAD_AFTER_SECONDS: Final = 1.5


@dataclass(frozen=True)
class PostgreSQLOptions:
    """Options of the transport. Options of the database are in the URL."""

    dead_after: float = named_options.option(
        10.0, "Seconds of silence after which the messages of a consumer are requeued."
    )


class PostgreSQLKind(BrokerKind):
    """Queues in a database. The place is a `_postgresql_session.Place`."""

    name = "postgresql"
    options = PostgreSQLOptions
    ledger = "wbengine.engines.worker_based.ledger._sql:of_broker"
    diagnosis = "wbengine.diagnosis._postgresql_checks"

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
            raise ValueError("The URL of a database is missing: postgresql://USER@HOST/DATABASE")
        target = Target(url, self.name, self, options)
        self.place(target)
        return target

    def place(self, target: Target) -> Any:
        try:
            place = object_names.load(f"{_MODULE}_session:Place")
        except ImportError as error:
            message = installing.needs("transport 'postgresql'", "psycopg", "postgresql")
            raise ValueError(message) from error
        return place.parse(target.url)

    def shown(self, target: Target) -> str:
        return str(self.place(target).shown)

    def check(self, target: Target) -> bool:
        self.place(target).check()
        return super().check(target)

    def open(self, target: Target) -> Broker:
        options = PostgreSQLOptions(
            **{key: value for key, value in target.options.items() if key != "claims"}
        )
        broker: Broker = object_names.load(f"{_MODULE}:PostgreSQLBroker")(
            self.place(target), target.options.get("claims"), options.dead_after
        )
        return broker

    def explain(self, error: BaseException) -> str | None:
        if not _is_of_psycopg(error):
            return None
        text = str(error)
        if "Connection refused" in text:
            return "nothing listens there (connection refused)"
        if "timeout expired" in text:
            return "it does not answer"
        # The reason is at the end of "connection to server at ... failed: FATAL:  ...".
        line = text.strip().partition("\n")[0].rpartition("FATAL:")[2].rpartition(" failed: ")[2]
        return " ".join(line.split()) or None

    def may_pass(self, error: BaseException) -> bool:
        chain = [error]
        while (cause := chain[-1].__cause__) is not None and cause not in chain:
            chain.append(cause)
        cause = next((each for each in chain if _is_of_psycopg(each)), None)
        if cause is None or self.is_refusal(cause):
            return False
        state = getattr(cause, "sqlstate", None)
        is_lost = state is None and type(cause).__name__ == "OperationalError"
        return is_lost or (state or "").startswith(_PASSING_STATES)

    def is_refusal(self, error: BaseException) -> bool:
        return _is_of_psycopg(error) and any(sign in str(error) for sign in _REFUSALS)


def _is_of_psycopg(error: BaseException | None) -> bool:
    return type(error).__module__.partition(".")[0] == "psycopg"


#: Starts of SQL states of a server that cannot write now: it is read-only, out of resources,
#: starting or stopping.
_PASSING_STATES: Final = ("25006", "53", "57P")
_REFUSALS: Final = (
    "authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied",
    "no password supplied",
)  # fmt: skip
KIND: Final = PostgreSQLKind()
