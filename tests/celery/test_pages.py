"""Tables and examples of the reference page of Celery messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import pages, workers
from wbengine.interop import celery
from wbengine.interop.celery import _protocol, _serializers, events

PAGE = workers.REPOSITORY / "doc" / "source" / "reference" / "celery_messages.rst"

#: Fields that Celery's protocol specification names.
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
    "properties": _protocol.PROPERTIES,
    "headers": _protocol.HEADERS,
    "arguments": _protocol.ARGUMENTS,
    "embed": _protocol.EMBED,
    "version 1": (*_protocol.VERSION_1, _protocol.UTC),
    "result": _protocol.RESULT,
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_contain_each_specified_field(what: str) -> None:
    names = [field.name for field in TABLES[what]]
    assert len(set(names)) == len(names)
    assert SPECIFIED[what] <= set(names)


#: Parts of a message of version 2 by their names on the page.
PLACES = {
    "properties": _protocol.PROPERTIES,
    "headers": _protocol.HEADERS,
    "body": _protocol.ARGUMENTS,
    "embed": _protocol.EMBED,
}


def table(mark: str) -> list[list[str]]:
    """Return the rows of the table behind the comment `mark`, without the header."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f".. {mark}\n.. csv-table::\n")
    assert found
    rows = re.findall(r"^   (``.*)$", rest.split("\n\n")[1], re.MULTILINE)
    return [[cell.strip() for cell in row.split(";")] for row in rows]


def check(field: _protocol.Field, kind: str, default: str) -> None:
    assert kind == field.kind.words, field.name
    assert (default == "required") == field.required, field.name


@pytest.mark.parametrize("place", PLACES)
def test_page_describes_all_fields_of_version_2(place: str) -> None:
    rows = {row[0]: row for row in table("fields: task") if row[1] == place}
    assert [*rows] == [f"``{field.name}``" for field in PLACES[place]]
    for field in PLACES[place]:
        _, _, _, kind, default, meaning = rows[f"``{field.name}``"]
        check(field, kind, default)
        assert meaning


def test_page_describes_all_fields_of_version_1() -> None:
    fields = (*_protocol.VERSION_1, _protocol.UTC)
    known: Mapping[str, list[str]] = {
        row[0]: row for row in table("fields: task") if row[2] == "body"
    }
    assert [*known] == [f"``{field.name}``" for field in fields]
    required = {name for name, row in known.items() if row[4] == "required"}
    required |= {name for name, row in known.items() if "Required in version 1" in row[5]}
    assert required == {f"``{field.name}``" for field in fields if field.required}
    for field in fields:
        assert known[f"``{field.name}``"][3] == field.kind.words


def test_page_describes_all_fields_of_results() -> None:
    rows = table("fields: result")
    assert [row[0] for row in rows] == [f"``{field.name}``" for field in _protocol.RESULT]
    for (_, kind, default, _), field in zip(rows, _protocol.RESULT, strict=True):
        check(field, kind, default)


def test_page_describes_all_events() -> None:
    assert [row[:2] for row in table("events: standard")] == [
        [f"``{field.name}``", field.kind.words] for field in events.STANDARD
    ]
    described = {row[0]: row[2].split(", ") for row in table("events: types")}
    assert described == {
        f"``{kind}``": [f"``{name}``" for name in names] for kind, names in events.CATALOGUE.items()
    }
    known = dict.fromkeys(f"``{name}``" for names in events.CATALOGUE.values() for name in names)
    assert [row[0] for row in table("events: fields")] == list(known)


def test_page_describes_all_serializers() -> None:
    rows = [row[:2] for row in table("serializers: types")]
    assert rows == [
        [f"``{name}``", f"``{mime}``"] for name, mime in _serializers.MIME_TYPES.items()
    ]


def test_examples_of_page_print_shown_output(tmp_path: Path) -> None:
    blocks = pages.blocks(PAGE)
    assert blocks[0].expected
    assert [block.expected for block in blocks] == pages.run_blocks(
        blocks, tmp_path, dict(os.environ)
    )


def test_public_names_can_be_imported() -> None:
    for name in celery.__all__:
        assert getattr(celery, name) and name in dir(celery)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        celery.nothing  # noqa: B018
