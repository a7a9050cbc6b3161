"""Folder as a store: its SQLite database and its permissions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from wbengine import exceptions
from wbengine.persistence import backends, models


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_database_in_folder_is_readable_by_owner_only(tmp_path: Path) -> None:
    """This includes an existing folder that other users can read."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    for folder in (tmp_path / "some" / "new", shared):
        with backends.backend("dir", path=folder) as backend:
            backend.get_connection().save_logbook(models.LogBook("orders", uuid="book"))
            files = {path.name: mode(path) for path in folder.iterdir()}
        assert files.pop("flows.db") == 0o600
        assert set(files.values()) <= {0o600}
        with contextlib.closing(sqlite3.connect(folder / "flows.db")) as database:
            assert database.execute("SELECT name FROM wbe_logbooks").fetchall() == [("orders",)]
    assert mode(tmp_path / "some" / "new") == 0o700


@pytest.mark.parametrize("name", ["a file?", "#1 100%", "~/x"])
def test_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    with backends.backend({"connection": "dir", "path": path}) as backend:
        backend.get_connection().save_logbook(models.LogBook("orders", uuid="book"))
    assert os.path.exists(f"{path}/flows.db")


def test_path_that_is_not_a_folder_appears_in_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        connection = backends.fetch("dir", path=path).get_connection()
        for ask in (lambda c=connection: list(c.get_logbooks()), connection.upgrade):
            with pytest.raises(exceptions.StorageFailure, match=f"^{path} cannot be used: "):
                ask()
