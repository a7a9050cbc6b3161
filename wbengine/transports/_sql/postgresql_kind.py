"""The kind of the transport through PostgreSQL. It imports neither SQLAlchemy nor psycopg."""

from __future__ import annotations

from typing import Final

from wbengine.transports._sql.sql_kind import SQLKind


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
        return self.is_own(error) and any(sign in str(error) for sign in _REFUSALS)


#: Starts of SQL states that may pass: a lost connection, a read-only server, a conflict, exhausted
#: resources, a lock timeout, a cancelled statement or a server that starts or stops, an I/O error.
_PASSING_STATES: Final = ("08", "25006", "40", "53", "55P03", "57", "58030")
_REFUSALS: Final = (
    "authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied",
    "no password supplied", "no such database", "no such user",
)  # fmt: skip
KIND: Final = PostgreSQLKind()
