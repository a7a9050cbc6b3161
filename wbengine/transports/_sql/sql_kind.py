"""The kinds of the transports through PostgreSQL and MySQL.

This imports neither SQLAlchemy nor a driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wbengine._configuration import named_options
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine.transports import _reasons
from wbengine.transports._broker import Broker
from wbengine.transports._kinds import BrokerKind, Target, check_dead_after, check_options

#: Starts of PostgreSQL's states that may pass: a lost connection, a read-only server, a conflict,
#: exhausted resources, a lock timeout, a cancelled statement or a server that starts or stops, an
#: I/O error.
_PASSING_STATES: Final = ("08", "25006", "40", "53", "55P03", "57", "58030")
#: Parts of errors of a server that refuses an account, or does not have the database.
_POSTGRESQL_REFUSALS: Final = (
    "authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied",
    "no password supplied", "no such database", "no such user",
)  # fmt: skip
#: MySQL's codes of errors of a server that cannot write now: it is full, read-only, starting or
#: stopping, or a lock is not free.
_MYSQL_PASSING_CODES: Final = (
    1021, 1040, 1041, 1053, 1114, 1203, 1205, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 3169, 4031,
)  # fmt: skip
#: MySQL's codes of errors of a server that refuses an account, or does not have the database.
_MYSQL_REFUSALS: Final = (1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1410, 1698)
_MYSQL_LOST: Final = (2006, 2013)


@dataclass(frozen=True)
class SQLOptions:
    """Options of the transport. Options of the database are in the URL."""

    dead_after: float = named_options.option(
        10.0, "Seconds of silence after which the messages of a consumer are requeued."
    )


class SQLKind(BrokerKind):
    """Queues in a database. The place is a `sql_session.Place`."""

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
        check_dead_after(options)
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
        return next(filter(self.is_own, _reasons.causes(error)), None)

    def is_own(self, error: BaseException) -> bool:
        """Return whether the driver has raised an error."""
        return type(error).__module__.partition(".")[0] == self.driver


class PostgreSQLKind(SQLKind):
    name = "postgresql"
    driver = "psycopg"
    extra = "postgresql"
    broker = "wbengine.transports._sql.postgresql_broker:PostgreSQLBroker"
    diagnosis = "wbengine.diagnosis._postgresql_checks"

    def explain(self, error: BaseException) -> str | None:
        if not self.is_own(error):
            return None
        text = str(error)
        if "Connection refused" in text:
            return "nothing listens there (connection refused)"
        if "timeout expired" in text:
            return "it does not answer"
        if "resolve host" in text or "translate host name" in text:
            return "its name cannot be resolved"
        # The reason is at the end of "connection to server at ... failed: FATAL:  ...".
        line = text.strip().partition("\n")[0].rpartition("FATAL:")[2].rpartition(" failed: ")[2]
        return " ".join(line.split()) or None

    def may_pass(self, error: BaseException) -> bool:
        cause = self.find(error)
        if cause is None or self.is_refusal(cause):
            return False
        state = getattr(cause, "sqlstate", None)
        is_lost = state is None and type(cause).__name__ == "OperationalError"
        return is_lost or (state or "").startswith(_PASSING_STATES)

    def is_refusal(self, error: BaseException) -> bool:
        return self.is_own(error) and any(sign in str(error) for sign in _POSTGRESQL_REFUSALS)


class MySQLKind(SQLKind):
    name = "mysql"
    driver = "pymysql"
    extra = "mysql"
    broker = "wbengine.transports._sql.mysql_broker:MySQLBroker"
    diagnosis = "wbengine.diagnosis._mysql_checks"

    def explain(self, error: BaseException) -> str | None:
        if not self.is_own(error):
            return None
        text = str(error.args[1]) if len(error.args) == 2 else str(error)
        if "Connection refused" in text:
            return "nothing listens there (connection refused)"
        if "timed out" in text:
            return "it does not answer"
        if code_of(error) in _MYSQL_LOST:
            return "the connection was lost"
        return " ".join(text.split()) or None

    def may_pass(self, error: BaseException) -> bool:
        cause = self.find(error)
        return cause is not None and code_of(cause) in _MYSQL_PASSING_CODES

    def is_refusal(self, error: BaseException) -> bool:
        return self.is_own(error) and code_of(error) in _MYSQL_REFUSALS


def code_of(error: BaseException) -> Any:
    """Return the number of an error of MySQL."""
    return error.args[0] if error.args else None


POSTGRESQL: Final = PostgreSQLKind()
MYSQL: Final = MySQLKind()
