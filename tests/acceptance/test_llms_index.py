"""The documentation contains an index of its pages for language models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import python, workers

EXTENSIONS = workers.REPOSITORY / "doc" / "source" / "_ext"
PAGES = {
    "index": (
        "Shop\n====\n\nWelcome.\n\n.. toctree::\n   :caption: Guides\n   :hidden:\n\n   guides\n\n"
        ".. toctree::\n   :caption: Reference\n   :hidden:\n\n   names\n"
    ),
    "guides": (
        "All guides\n==========\n\n.. toctree::\n   :caption: Run\n\n   start\n   stop\n\n"
        ".. toctree::\n   :caption: Move\n\n   leave\n"
    ),
    "start": "Start a *shop*\n==============\n\nThis page shows\nhow to ``start``.  It is short.\n",
    "stop": "Stop\n====\n",
    "leave": "Leave\n=====\n\n**Context.** Use this list: it is long.\n",
    "names": "Names\n=====\n\n.. _here:\n\nLook up a name, for example 1.5.\n",
}
EXPECTED = """\
# shop

> All about shops.

`_sources` contains the source of each page, for example `_sources/index.rst.txt`.

## Guides

- [All guides](https://shop.example/guides.html)

## Guides: Run

- [Start a shop](https://shop.example/start.html): This page shows how to start.
- [Stop](https://shop.example/stop.html)

## Guides: Move

- [Leave](https://shop.example/leave.html): Use this list: it is long.

## Reference

- [Names](https://shop.example/names.html): Look up a name, for example 1.5.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the folder of a small documentation."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")
    (folder / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\n"
        "project, extensions = 'shop', ['llms_index']\n"
        "llms_summary, html_baseurl = 'All about shops.', 'https://shop.example/'\n",
        encoding="utf-8",
    )
    return folder


def build(source: Path, builder: str) -> Path:
    target = source.parent / builder
    command = ["-m", "sphinx", "-W", "-q", "-b", builder, source, target]
    ended = python.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return target


@pytest.mark.slow
def test_llms_txt_lists_pages_of_all_toctrees_with_first_sentence(source: Path) -> None:
    folder = build(source, "html")
    text = (folder / "llms.txt").read_text(encoding="utf-8")
    assert text == EXPECTED
    for page in re.findall(r"example/([^)]*)", text):
        assert (folder / page).exists()
        assert (folder / "_sources" / page.replace(".html", ".rst.txt")).exists()


@pytest.mark.slow
def test_llms_txt_is_written_for_html_only(source: Path) -> None:
    assert not (build(source, "text") / "llms.txt").exists()
