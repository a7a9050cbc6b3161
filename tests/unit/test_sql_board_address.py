"""Flows and their job board in different databases: the note in the flow identifies the board."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from wbengine.jobs.backends.impl_sql import SQLJobBoard
from wbengine.persistence.backends import fetch


def board(url: str) -> SQLJobBoard:
    return SQLJobBoard("b", {"connection": url}, persistence=fetch("memory"))


def test_board_in_a_file_is_recognized_under_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("real").mkdir()
    Path("link").symlink_to("real")
    paths = (f"{tmp_path}/real/jobs.db", "real/jobs.db", f"{tmp_path}/real/../link/jobs.db")
    boards = [board(f"sqlite:///{path}") for path in paths]
    other = board("sqlite:///real/other.db")
    for each in boards:
        assert all(each.is_noted(another.note) for another in boards)
        assert not each.is_noted(other.note) and not other.is_noted(each.note)


def test_board_on_a_server_is_recognized_under_each_url() -> None:
    urls = (
        "postgresql://localhost/jobs",
        "postgresql://anna:secret@127.0.0.1:5432/jobs?max_pool_size=3",
        f"postgresql+psycopg://{socket.gethostname()}/jobs",
        "postgresql:///jobs?host=localhost&port=5432",
    )
    boards = [board(url) for url in urls]
    others = [
        board("postgresql://localhost/other"),
        board("postgresql://localhost:5433/jobs"),
        board("postgresql://db/jobs"),
        board("mysql://localhost/jobs"),
        board("postgresql:///jobs?host=db&port=5432"),
        board("postgresql:///jobs?host=localhost&port=5433"),
        board("postgresql://localhost/jobs?options=-csearch_path%3Da"),
    ]
    for each in boards:
        assert all(each.is_noted(another.note) for another in boards)
        assert not any(each.is_noted(other.note) for other in others)
        assert "secret" not in str(each.note)
