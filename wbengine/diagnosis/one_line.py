"""Texts of several lines, such as those of errors with causes, in one."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["joined"]

#: A cause, as errors tell it: what it says; of an error of the system, its words.
_CAUSE: Final = re.compile(r"[\w.]+: (?:\[Errno \d+\] ([^:]+)|(.+))")


def joined(text: str) -> str:
    """Its lines, but for causes whose words those before them have said."""
    found = ""
    for line in (line.strip().rstrip(":") for line in text.splitlines()):
        told = _CAUSE.match(line) if found else None
        if line and not (told and (told[1] or told[2]) in found):
            found += f": {line}" if found else line
    return found
