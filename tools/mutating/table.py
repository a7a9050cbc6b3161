"""The table of the documentation that contains the results of `tools/mutate`."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tools.benching import rst

#: The place of the table in the page.
PLACE = "mutants"


@dataclass(frozen=True)
class Row:
    part: str
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
    """Return the rows of a table that `record` wrote."""
    lines = [line for line in text.splitlines() if not line.startswith("=")]
    rows = []
    for line in lines[1:]:
        values = re.split(" {2,}", line)[: len(fields(Row))]
        rows.append(Row(*values[:3], *map(int, values[3:])))
    return rows


def record(page: Path, new: Row) -> None:
    """Add a row to the table of `page`, or replace the row of the same part, tests and seed.

    :raises KeyError: if the page has no place for the table.
    """
    text = page.read_text(encoding="utf-8")

    def key(row: Row) -> tuple[str, ...]:
        return row.part, row.tests, str(row.seed)

    old_rows = read(rst.places(text).get(PLACE, ""))
    rows = sorted([row for row in old_rows if key(row) != key(new)] + [new], key=key)
    names = [field.name.replace("_", " ") for field in fields(Row)] + ["rate"]
    lines = rst.table(names, ([str(value) for value in (*astuple(row), row.rate)] for row in rows))
    page.write_text(rst.with_texts(text, {PLACE: "\n".join(lines)}), encoding="utf-8")
