"""The kind of the transport through MySQL. It imports neither SQLAlchemy nor PyMySQL."""

from __future__ import annotations

from typing import Any, Final

from wbengine.transports._sql.sql_kind import SQLKind

#: Codes of errors of a server that cannot write now: it is full, read-only, starting or stopping,
#: or a lock is not free.
_PASSING_CODES: Final = (
    1021, 1040, 1041, 1053, 1114, 1203, 1205, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 3169, 4031,
)  # fmt: skip
#: Codes of errors of a server that refuses an account, or does not have the database.
_REFUSALS: Final = (1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1410, 1698)
_LOST: Final = (2006, 2013)


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
        if _code(error) in _LOST:
            return "the connection was lost"
        return " ".join(text.split()) or None

    def may_pass(self, error: BaseException) -> bool:
        cause = self.find(error)
        return cause is not None and _code(cause) in _PASSING_CODES

    def is_refusal(self, error: BaseException) -> bool:
        return self.is_own(error) and _code(error) in _REFUSALS


def _code(error: BaseException) -> Any:
    return error.args[0] if error.args else None


KIND: Final = MySQLKind()
