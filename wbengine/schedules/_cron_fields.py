"""Fields of cron expressions: nicknames, and checks that name the field and the reason.

The iterator `cronsim` accepts some steps without effect, and its errors contain no reason.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["expand"]


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    #: Names of the values from `first` on.
    names: tuple[str, ...] = ()
    #: Matches terms that are neither values, ranges nor steps. By default, there are none.
    other: str = "(?!)"

    def value(self, text: str) -> int:
        if text.upper() in self.names:
            return self.first + self.names.index(text.upper())
        if text.isascii() and text.isdecimal() and self.first <= int(text) <= self.last:
            return int(text)
        values = f"{self.first} to {self.last}"
        if self.names:
            values += f" or {self.names[0]} to {self.names[-1]}"
        raise ValueError(f"values of the {self.name} must be {values}, got {text!r:.40}")

    def check(self, term: str) -> None:
        """Check a part of a field without commas."""
        if re.fullmatch(self.other, term, re.ASCII | re.IGNORECASE):
            return
        base, has_step, step = term.partition("/")
        start, has_end, end = base.partition("-")
        first = self.first if base == "*" else self.value(start)
        last = self.value(end) if has_end else self.last
        if last < first:
            raise ValueError(
                f"a range of the {self.name} must not end before it starts, got {base!r}:"
                f" write {start}-{self.last},{self.first}-{end}"
            )
        count = last - first + 1
        if has_step and not (step.isascii() and step.isdecimal() and 1 <= int(step) <= count):
            raise ValueError(
                f"the step of the {self.name} in {term!r:.40} must be 1 to {count}, the number of"
                " values"
            )


_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS: Final = (
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
)  # fmt: skip
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31, other="LW?"),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS, other=rf"[0-7]L|([0-7]|{'|'.join(_DAYS)})#[1-5]"),
)
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def expand(expression: str) -> str:
    """Return the five fields of an expression or of a nickname such as '@daily'.

    :raises ValueError: if a field is invalid; the message contains the field and the reason.
    """
    fields = _NICKNAMES.get(expression.strip().lower(), expression).split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"it must have five fields, or be one of {', '.join(_NICKNAMES)}")
    for field, text in zip(_FIELDS, fields, strict=True):
        for term in text.split(","):
            field.check(term)
    return " ".join(fields)
