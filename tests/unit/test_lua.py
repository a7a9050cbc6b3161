"""Lua scripts are loaded from files, with shared files and constants."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from wbengine._redis import lua_scripts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "first.lua").write_text("local first = LIMIT\n")
    (tmp_path / "shared" / "second.lua").write_text("-- include first\nlocal second = first\n")
    return tmp_path


def test_shared_file_is_inserted_once_before_its_first_use(folder: Path) -> None:
    (folder / "sum.lua").write_text("-- include second\n-- include first\nreturn first + second\n")
    script = lua_scripts.load(folder, {"LIMIT": 5, "NAME": "text"})["sum"]
    assert script.text == (
        "local LIMIT = 5\nlocal NAME = 'text'\n"
        "local first = LIMIT\nlocal second = first\nreturn first + second\n"
    )
    assert script.digest == hashlib.sha1(script.text.encode()).hexdigest()


def test_shared_files_of_another_folder_are_included(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "a.lua").write_text("-- include first\n")
    assert lua_scripts.load(own, shared=[folder / "shared"])["a"].text == "local first = LIMIT\n"


def test_unknown_shared_file_is_refused(folder: Path) -> None:
    (folder / "a.lua").write_text("-- include missing\n")
    with pytest.raises(KeyError, match="missing"):
        lua_scripts.load(folder)
