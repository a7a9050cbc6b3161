"""Formats: what a release reads, and how it refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest

import wbengine
from wbengine import exceptions
from wbengine._text import data_formats

THINGS = data_formats.Format("thing", 2, (1, 2, 3))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_format_reads_the_written_version_and_its_neighbours(version: int) -> None:
    assert THINGS.reads(version)
    assert THINGS.problem("box", version) is None
    THINGS.check("box", version)


@pytest.mark.parametrize("version", [0, 4, True, 1.0, "1", None, [1], "x" * 1000])
def test_other_versions_are_refused(version: Any) -> None:
    assert not THINGS.reads(version)
    with pytest.raises(exceptions.IncompatibleVersion) as caught:
        THINGS.check("box", version)
    assert str(caught.value).startswith(f"box has thing format {str(version)[:20]}, and wbengine")
    assert len(str(caught.value)) < 150


def test_newer_version_is_refused_with_the_advice_to_upgrade() -> None:
    assert THINGS.problem("box", 4) == (
        f"box has thing format 4, and wbengine {wbengine.__version__} reads formats 1 and 2 and 3:"
        " use a newer version of wbengine"
    )
    single = data_formats.Format("thing", 2, (2,))
    assert single.problem("box", 1) == (
        f"box has thing format 1, and wbengine {wbengine.__version__} reads format 2"
    )


@pytest.mark.parametrize("each", data_formats.ALL, ids=lambda each: each.name)
def test_each_format_reads_the_version_it_writes(each: data_formats.Format) -> None:
    assert each.written in each.read
    assert list(each.read) == sorted(set(each.read))
