"""Builds of the package for `tools/chaos --upgrade`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import builds

LATER = builds.READ_MESSAGES + builds.WRITE_MESSAGES


@pytest.mark.parametrize(
    "changes",
    [builds.FIRST, builds.SECOND, LATER, builds.WITHOUT_CHECKS, LATER + builds.WITHOUT_CHECKS],
    ids=["first", "second", "later", "present unchecked", "later unchecked"],
)
def test_changes_of_a_build_match_the_package(tmp_path: Path, changes: builds.Changes) -> None:
    build = builds.create(tmp_path / "build", changes)
    for name, _, new in changes[-1:]:
        assert new in (build / "wbengine" / name).read_text()


def test_change_that_does_not_match_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"wbengine/_text/data_formats\.py must contain once: missing"
    ):
        builds.create(tmp_path / "build", (("_text/data_formats.py", "missing", "new"),))
