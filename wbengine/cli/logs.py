"""The log of a command: on the standard error, as lines of text or of JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Final

from wbengine import _log_lines
from wbengine._terminal import escaped_json

__all__ = ["JSONLines", "install"]

#: What each record has; anything else was given by `extra`.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JSONLines(logging.Formatter):
    """One JSON object for each record: time, level, logger, message, and what else it carries."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(found, default=str, ensure_ascii=False))


def install(level: str, form: str, color: str) -> None:
    """Write what is logged, from this level on; unless somebody did that already."""
    if form == "text":
        _log_lines.install(level, color, sys.stderr)
    elif not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JSONLines())
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(level.upper())
