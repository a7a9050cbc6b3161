"""Safe output of untrusted text on terminals and in logs.

Names, errors and results may contain escape sequences that move the cursor, set the title or paste
into the shell, and marks that change the direction of writing.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PRINTABLE", "TRIMMED", "escaped_json", "is_printable", "is_trimmed", "visible"]

#: C0 except newline, DEL, C1, direction marks and overrides, and line separators.
_CONTROL: Final = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
#: Streams cannot encode these.
_SURROGATES: Final = r"\ud800-\udfff"
_IN_LINES: Final = re.compile(f"[{_CONTROL}{_SURROGATES}]")
_IN_A_LINE: Final = re.compile(rf"[\n{_CONTROL}{_SURROGATES}]")

#: Patterns of names and short texts, also for JSON schemas: one line without control characters,
#: and such a line without surrounding blanks. Validators of other languages know no surrogates.
PRINTABLE: Final = rf"^[^\n{_CONTROL}]+$"
TRIMMED: Final = rf"^[^\s{_CONTROL}](?:[^\n{_CONTROL}]*[^\s{_CONTROL}])?$"


def is_printable(text: str) -> bool:
    """Return whether a text matches `PRINTABLE` and contains no surrogates."""
    return bool(text) and _IN_A_LINE.search(text) is None


def is_trimmed(text: str) -> bool:
    """Return whether a text matches `TRIMMED` and contains no surrogates."""
    return is_printable(text) and text == text.strip()


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return `text` with its control characters escaped.

    :param lines: keep newlines.

    >>> visible("a\x1b[2J\nb"), visible("a\x07\nb", lines=True)
    ('a\\x1b[2J\\nb', 'a\\x07\nb')
    """
    if text.isprintable():
        return text
    return (_IN_LINES if lines else _IN_A_LINE).sub(_escape, text)


def escaped_json(text: str) -> str:
    """Escape control characters that JSON allows but that affect terminals."""
    return text if text.isascii() and "\x7f" not in text else _IN_LINES.sub(_escape_json, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _escape_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
