"""The page about events: its tables are those of the code, and its example runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.support import pages, workers
from tests.support.brokers import Place
from wbengine.interop.celery.monitoring import events

PAGE = workers.REPOSITORY / "doc" / "source" / "reference" / "celery_events.rst"


def table(what: str) -> list[tuple[str, ...]]:
    """The rows of the table behind the comment `.. events: what`, without the first."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f".. events: {what}\n")
    found = re.findall(r"^   \* - (.+)\n     - (.+)\n     - (.+)$", rest, re.MULTILINE)
    lines = rest.split("\n\n")[1].count("   * - ")
    return found[1:lines]


def rows(fields: Iterable[events.Field]) -> list[tuple[str, ...]]:
    return [(f"``{f.name}``", f.type, f.meaning.replace("`", "``")) for f in fields]


def test_the_standard_fields() -> None:
    assert table("standard") == rows(events.STANDARD)


def test_the_types() -> None:
    assert table("types") == [
        (f"``{kind.type}``", kind.when, ", ".join(f"``{f.name}``" for f in kind.fields))
        for kind in events.CATALOGUE.values()
    ]


def test_the_fields() -> None:
    every = {f.name: f for kind in events.CATALOGUE.values() for f in kind.fields}
    assert table("fields") == rows(every.values())


def test_the_example(redis_url: Place, tmp_path: Path) -> None:
    found = pages.blocks(PAGE)
    printed = pages.printed(found, tmp_path, {**os.environ, "WBENGINE_URL": str(redis_url)})
    assert printed == ["", "", found[-1].expected]
