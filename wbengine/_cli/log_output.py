"""Log of a command on the standard error, as lines of text or JSON."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from wbengine._concurrency import contexts
from wbengine._logs import line_format, stored_lines
from wbengine._text.terminal_text import escaped_json

__all__ = ["JSONLines", "fields", "install", "show_all"]

#: Fields of all JSON lines of this process.
_FIELDS: Final[dict[str, str]] = {}

#: Attributes that every log record has. Other attributes come from `extra`.
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
}


class JSONLines(logging.Formatter):
    """Formatter that prints a JSON object for each record, with secrets masked.

    The object contains time, level, logger, message, `fields`, the flow, task, step, request and
    attempt to which the record belongs, and the fields of `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": _masked(record.getMessage()),
            **_FIELDS,
        }
        extra = _fields_of_call()
        extra |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
        }
        if extra:
            from wbengine.views import _json_values

            content |= _json_values.to_json(extra, _masked, str)
        if record.exc_info:
            content["traceback"] = _masked(self.formatException(record.exc_info))
        if record.stack_info:
            content["stack"] = _masked(self.formatStack(record.stack_info))
        return escaped_json(json.dumps(content, ensure_ascii=False))


def _fields_of_call() -> dict[str, Any]:
    """Return the fields of the running call. Handlers run in the context of the record."""
    return dict(contexts.log_fields())


def _masked(text: str) -> str:
    from wbengine._security import masking  # imported here, because most commands log nothing

    return masking.masked(text)


@contextlib.contextmanager
def fields(**values: str | None) -> Iterator[None]:
    """Add fields to all JSON lines of this process in a `with` block, except for None."""
    _FIELDS.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name in values:
            _FIELDS.pop(name, None)


def install(level: str, form: str, color: str, all_frames: bool = False) -> None:
    """Write log lines of this level and higher to the standard error.

    Nothing changes if the root logger has a handler. Loggers other than those of wbengine create
    records from level INFO in any case, because the lines of tasks are stored with their flow.

    :param all_frames: show all frames of failures, not only those of the user's code. JSON always
        contains all of them.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    if form == "text":
        line_format.install(level, color, _masked, all_frames)
    else:
        handler = logging.StreamHandler(line_format.Stderr())
        handler.setFormatter(JSONLines())
        root.addHandler(handler)
        root.setLevel(level.upper())
    if root.level > stored_lines.DEFAULT_LEVEL:
        for each in root.handlers:
            each.setLevel(root.level)
        logging.getLogger("wbengine").setLevel(root.level)
        root.setLevel(stored_lines.DEFAULT_LEVEL)


def show_all(name: str) -> None:
    """Write the lines of a logger from level INFO, independent of the level of the log."""
    logging.getLogger(name).setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:
        if handler.level > logging.INFO:
            handler.addFilter(_LevelOfOthers(name, handler.level))
            handler.setLevel(logging.INFO)


class _LevelOfOthers(logging.Filter):
    """Filter for the records of one logger, and of others from a level."""

    def __init__(self, name: str, level: int) -> None:
        super().__init__(name)
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= self._level or bool(super().filter(record))
