"""Conversion of texts with several lines, such as errors with causes, to one line."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["join_lines"]

#: A cause in the text of an error, with its message; group 1 is the message of an OSError.
_CAUSE: Final = re.compile(r"[\w.]+: (?:\[Errno \d+\] ([^:]+)|(.+))")


def join_lines(text: str) -> str:
    """Join the lines of a text, without causes whose message an earlier line contains."""
    result = ""
    for line in (line.strip().rstrip(":") for line in text.splitlines()):
        cause = _CAUSE.match(line) if result else None
        if line and not (cause and (cause[1] or cause[2]) in result):
            result += f": {line}" if result else line
    return result
