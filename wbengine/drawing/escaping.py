"""Names as they may stand in SVG and HTML, whatever is in them."""

from __future__ import annotations

from html import escape
from typing import Final

__all__ = ["text"]

#: What XML does not allow, what UTF-8 cannot say, and what is written by its number.
_BAD: Final = {
    **{number: "\ufffd" for number in range(32) if number not in (9, 10, 13)},
    **dict.fromkeys((*range(0x7F, 0xA0), 0xFFFE, 0xFFFF), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    # What a terminal obeys, should it be shown there: a browser reads the same.
    **{
        number: f"&#{number};"
        for number in (13, 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    },
}


def text(said: str) -> str:
    """`said`, for between tags and for attributes in double quotes."""
    shown = escape(said)
    return shown if shown.isascii() and shown.isprintable() else shown.translate(_BAD)
