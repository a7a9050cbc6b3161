"""The page of the documentation that keeps what was measured."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields
from pathlib import Path

HEAD = """\
.. Written by tools/mutate --record.

How much the tests find
=======================

``tools/mutate ROOM`` plants defects in a part of the package, one at a time, and runs the tests
that are related to it: those through the public interface and the seams, without the unit tests of
the part itself (*black-box*), or with them (*all*). A defect that no test finds survives. The rate
is the share of those that were found, by a test that failed or by a run that did not end in time.
The same seed plants the same defects in the same code.

"""
#: The heading of what is written by hand, after the table.
SURVIVORS = "What survived\n-------------\n"


@dataclass(frozen=True)
class Row:
    room: str
    date: str
    tests: str
    seed: int
    mutants: int
    killed: int
    timed_out: int
    survived: int

    @property
    def rate(self) -> str:
        return f"{(self.killed + self.timed_out) / self.mutants:.0%}"


def read(text: str) -> list[Row]:
    """The rows of the table of a page."""
    rows = re.findall(r"^   \* - (.*(?:\n     - .*)+)", text, re.M)
    found = []
    for row in rows[1:]:
        values = [value.strip() for value in row.split("\n     - ")]
        kept = values[: len(fields(Row))]
        found.append(Row(*kept[:3], *map(int, kept[3:])))
    return found


def record(page: Path, new: Row) -> None:
    """Add a row, in place of one of the same room, tests and seed; the page may not be there.

    What survived is told after the table, by hand, and kept.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, heading, told = text.partition(SURVIVORS)

    def same(row: Row) -> tuple[str, ...]:
        return row.room, row.tests, str(row.seed)

    rows = [row for row in read(before) if same(row) != same(new)] + [new]
    names = [field.name.replace("_", " ") for field in fields(Row)] + ["rate"]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for values in (names, *((*astuple(row), row.rate) for row in sorted(rows, key=same))):
        lines += [
            f"   {'* -' if not number else '  -'} {value}" for number, value in enumerate(values)
        ]
    rest = f"\n{heading}{told}" if heading else ""
    page.write_text(HEAD + "\n".join(lines) + "\n" + rest, encoding="utf-8")
