"""The kind of the transport through PostgreSQL. It imports neither SQLAlchemy nor psycopg."""

from __future__ import annotations

from typing import Final

from wbengine.transports._sql_kind import SQLKind


class PostgreSQLKind(SQLKind):
    name = "postgresql"
    driver = "psycopg"
    extra = "postgresql"
    broker = "wbengine.transports._postgresql_broker:PostgreSQLBroker"
    diagnosis = "wbengine.diagnosis._postgresql_checks"

    def explain(self, error: BaseException) -> str | None:
        if not self.is_own(error):
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
        cause = self.find(error)
        if cause is None or self.is_refusal(cause):
            return False
        state = getattr(cause, "sqlstate", None)
        is_lost = state is None and type(cause).__name__ == "OperationalError"
        return is_lost or (state or "").startswith(_PASSING_STATES)

    def is_refusal(self, error: BaseException) -> bool:
        return self.is_own(error) and any(sign in str(error) for sign in _REFUSALS)


#: Starts of SQL states of a server that cannot write now: it is read-only, out of resources,
#: starting or stopping.
_PASSING_STATES: Final = ("25006", "53", "57P")
_REFUSALS: Final = (
    "authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied",
    "no password supplied",
)  # fmt: skip
KIND: Final = PostgreSQLKind()
