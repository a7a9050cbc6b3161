"""Reference pages of Celery's messages: their tables are those of the code, and examples run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support import pages, workers
from wbengine.interop import celery
from wbengine.interop.celery import events, protocol, serializers

REFERENCE = workers.REPOSITORY / "doc" / "source" / "reference"
PROTOCOL, EVENTS = REFERENCE / "celery_protocol.rst", REFERENCE / "celery_events.rst"

#: The fields that Celery's specification of the protocol names.
SPECIFIED = {
    "properties": {"correlation_id", "reply_to"},
    "headers": {
        "lang", "task", "id", "root_id", "parent_id", "group", "meth", "shadow", "eta", "expires",
        "retries", "timelimit", "argsrepr", "kwargsrepr", "origin", "replaced_task_nesting",
    },
    "arguments": {"args", "kwargs"},
    "embed": {"callbacks", "errbacks", "chain", "chord"},
    "version 1": {
        "task", "id", "args", "kwargs", "retries", "eta", "expires", "taskset", "chord", "utc",
        "callbacks", "errbacks", "timelimit",
    },
    "result": {"task_id", "status", "result", "traceback"},
}  # fmt: skip

TABLES = {
    "properties": protocol.PROPERTIES,
    "headers": protocol.HEADERS,
    "arguments": protocol.ARGUMENTS,
    "embed": protocol.EMBED,
    "version 1": (*protocol.VERSION_1, protocol.UTC),
    "result": protocol.RESULT,
}


@pytest.mark.parametrize("what", TABLES)
def test_every_field_that_is_specified_is_there(what: str) -> None:
    names = [field.name for field in TABLES[what]]
    assert len(set(names)) == len(names)
    assert SPECIFIED[what] <= set(names)


def table(page: Path, mark: str, columns: int) -> list[tuple[str, ...]]:
    """The rows of the table behind a comment, without the first."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f".. {mark}\n")
    assert found
    rows = next(part for part in rest.split("\n\n") if part.startswith("   * - "))
    cells = re.findall(r"^   (?:\* -|  -) ?(.*)$", rows, re.MULTILINE)
    return [tuple(cells[at : at + columns]) for at in range(0, len(cells), columns)][1:]


@pytest.mark.parametrize("what", TABLES)
def test_the_tables_of_messages(what: str) -> None:
    told = table(PROTOCOL, f"fields: {what}", 5)
    assert [(name, missing == "required") for name, _, missing, *_ in told] == [
        (f"``{field.name}``", field.required) for field in TABLES[what]
    ]
    for (_, kind, *_), field in zip(told, TABLES[what], strict=True):
        assert kind.startswith(field.kind.words.replace("`", "``"))


def test_the_tables_of_events() -> None:
    assert [row[:2] for row in table(EVENTS, "events: standard", 3)] == [
        (f"``{field.name}``", field.kind.words) for field in events.STANDARD
    ]
    told = {row[0]: row[2].split(", ") for row in table(EVENTS, "events: types", 3)}
    assert told == {
        f"``{kind}``": [f"``{name}``" for name in names] for kind, names in events.CATALOGUE.items()
    }
    known = dict.fromkeys(f"``{name}``" for names in events.CATALOGUE.values() for name in names)
    assert [row[0] for row in table(EVENTS, "events: fields", 3)] == list(known)


def test_the_page_names_every_serializer() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    for name, mime in serializers.MIME_TYPES.items():
        assert f"   * - ``{name}``\n     - ``{mime}``\n" in text


@pytest.mark.parametrize("page", [PROTOCOL, EVENTS], ids=lambda page: page.stem)
def test_the_example(page: Path, tmp_path: Path) -> None:
    found = pages.blocks(page)
    assert found[0].expected
    assert [block.expected for block in found] == pages.printed(found, tmp_path, dict(os.environ))


def test_the_public_names_are_there() -> None:
    for name in celery.__all__:
        assert getattr(celery, name) and name in dir(celery)
    assert set(celery.__all__) == set(celery._PLACES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        celery.nothing  # noqa: B018
