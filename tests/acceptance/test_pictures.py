"""`tools/pictures` creates the pictures of the documentation."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support import python, workers

TOOL = workers.REPOSITORY / "tools" / "pictures"
STATIC = workers.REPOSITORY / "doc" / "source" / "_static"


def words(path: Path) -> set[str]:
    """Return the words of an SVG picture."""
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", path.read_text("utf-8"), flags=re.DOTALL)
    return set(text.replace("&#160;", " ").split())


@pytest.mark.slow
def test_terminal_picture_shows_output_of_example(tmp_path: Path) -> None:
    python.run(
        [TOOL, "--here", "terminal", "--folder", tmp_path],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    picture = tmp_path / "terminal.svg"
    assert {"SUCCESS", "REVERTED", "\u2714", "\u21b6"} <= words(picture)
    assert re.findall("@font-face|href=", picture.read_text("utf-8")) == []
    assert "REVERTED" in words(STATIC / "terminal.svg")
