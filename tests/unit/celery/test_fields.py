"""The table of the protocol's fields, and the page that is made of it."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from pathlib import Path

import pytest

from tests.support import pages, workers
from wbengine.interop import celery
from wbengine.interop.celery.protocol import fields, serializers
from wbengine.interop.celery.protocol.message import TaskMessage

PAGE = workers.REPOSITORY / "doc" / "source" / "reference" / "celery_protocol.rst"

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
}  # fmt: skip

TABLES = {
    "properties": fields.PROPERTIES,
    "headers": fields.HEADERS,
    "arguments": fields.ARGUMENTS,
    "embed": fields.EMBED,
    "version 1": (*fields.VERSION_1, fields.UTC),
}


@pytest.mark.parametrize("what", TABLES)
def test_every_field_that_is_specified_is_there(what: str) -> None:
    names = [field.name for field in TABLES[what]]
    assert len(set(names)) == len(names)
    assert SPECIFIED[what] <= set(names)


def test_every_field_has_an_attribute_and_every_attribute_a_field() -> None:
    named = {field.attribute for some in TABLES.values() for field in some} - {""}
    there = {field.name for field in dataclasses.fields(TaskMessage)}
    assert named <= there
    # What is of the message as a whole, or the broker's.
    assert there - named == {"priority", "raw", "protocol", "extra", "content_type"}


def test_what_is_described_is_described() -> None:
    for some in TABLES.values():
        for field in some:
            assert field.meaning.endswith(".") and field.kind.schema
            assert not field.required or field.default == "none"


def table(what: str) -> list[tuple[str, ...]]:
    """The rows of the table behind the comment `.. fields: what`, without the first."""
    text = PAGE.read_text(encoding="utf-8")
    _, found, rest = text.partition(f".. fields: {what}\n")
    assert found
    [rows, *_] = [part for part in rest.split("\n\n") if part.startswith("   * - ")]
    cells = re.findall(r"^   (?:\* -|  -) ?(.*)$", rows, re.MULTILINE)
    lines = [tuple(cells[at : at + 5]) for at in range(0, len(cells), 5)]
    return lines[1:]


@pytest.mark.parametrize("what", TABLES)
def test_the_tables_of_the_page(what: str) -> None:
    assert table(what) == [
        (
            f"``{field.name}``",
            field.kind.words + (f", {field.unit}" if field.unit else "").replace("`", "``"),
            "required" if field.required else field.default,
            field.since,
            field.meaning.replace("`", "``"),
        )
        for field in TABLES[what]
    ]


def test_the_page_names_every_serializer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, mime in serializers.MIME_TYPES.items():
        assert f"   * - ``{name}``\n     - ``{mime}``\n" in text


def test_the_page_corrects_the_order_of_limits() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "``[hard, soft]``" in text and "an error of the documentation" in text


def test_the_example_of_the_page(tmp_path: Path) -> None:
    found = pages.blocks(PAGE)
    assert [block.expected for block in found] == pages.printed(found, tmp_path, dict(os.environ))
    assert found[0].expected


def test_the_public_names_are_there() -> None:
    package = celery
    for name in package.__all__:
        found = getattr(package, name)
        assert found is getattr(importlib.import_module(found.__module__), name)
        assert name in dir(package)
    assert set(package.__all__) == set(package._PLACES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018
