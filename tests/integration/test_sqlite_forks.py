"""A forked child and its parent have separate connections to an SQLite file."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from wbengine import _sql
from wbengine.persistence import backends, base, models
from wbengine.transports._folder import folder_tables


@contextlib.contextmanager
def forked(work: Callable[[], object], again: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Run `work` in a forked child. The value runs `again` in it, and then kills it."""
    here, there = os.pipe()
    go, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(there, b"1")
            os.read(go, 1)
            again()
            os.write(there, b"2")
            signal.pause()
        finally:
            os._exit(1)

    def run_again() -> None:
        os.write(start, b"1")
        assert os.read(here, 1) == b"2"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    os.close(there)  # Reading ends if the child dies.
    try:
        assert os.read(here, 1) == b"1"
        yield run_again
    finally:
        for fd in (here, go, start):
            os.close(fd)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def save_book(uri: str | base.Backend, name: str) -> None:
    with contextlib.closing(backends.fetch(uri) if isinstance(uri, str) else uri) as backend:
        add_book(backend, name)


def add_book(backend: base.Backend, name: str) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(models.LogBook(name))


def book_names(uri: str) -> set[str]:
    with backends.backend(uri) as backend, contextlib.closing(backend.get_connection()) as reading:
        return {book.name for book in reading.get_logbooks(lazy=True)}


@pytest.mark.parametrize("kind", ["sqlite", "dir"])
@pytest.mark.parametrize("end", ["close", "collect", "keep"])
def test_writes_of_a_killed_child_survive_the_parents_backend(
    tmp_path: Path, kind: str, end: str
) -> None:
    uri = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else f"dir://{tmp_path}/s"
    backend = backends.fetch(uri)
    add_book(backend, "parent")
    child: list[base.Backend] = []

    def work() -> None:
        child.append(backends.fetch(uri))
        add_book(child[0], "first")

    with forked(work, lambda: add_book(child[0], "second")) as run_again:
        if end == "close":
            backend.close()
        elif end == "collect":
            del backend
            gc.collect()
        save_book(uri, "other")  # The last connection of this process closes.
        run_again()
    assert book_names(uri) == {"parent", "first", "second", "other"}


def test_child_continues_with_the_backend_of_its_parent(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/s.db"
    backend = backends.fetch(uri)
    add_book(backend, "parent")
    with forked(
        lambda: add_book(backend, "first"), lambda: add_book(backend, "second")
    ) as run_again:
        add_book(backend, "meanwhile")
        backend.close()
        run_again()
    assert book_names(uri) == {"parent", "first", "meanwhile", "second"}


def test_messages_of_a_killed_child_survive_the_parents_transport(
    tmp_path: Path,
) -> None:
    def add(folder: folder_tables.Folder, name: str) -> None:
        folder.write("INSERT INTO queue VALUES (?, NULL, 0)", (name,))

    folder = folder_tables.open_folder(str(tmp_path))
    add(folder, "parent")
    with forked(lambda: add(folder, "first"), lambda: add(folder, "second")) as run_again:
        folder.release()
        other = folder_tables.open_folder(str(tmp_path))
        add(other, "other")
        other.release()
        run_again()
    last = folder_tables.open_folder(str(tmp_path))
    names = {name for (name,) in last.read("SELECT name FROM queue")}
    last.release()
    assert names == {"parent", "first", "second", "other"}


def test_file_is_watched_again_after_a_fork(tmp_path: Path) -> None:
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{tmp_path}/s.db"))
    _sql.transact(engine, "Creating", lambda it: it.exec_driver_sql("CREATE TABLE due (due)"))
    calls: list[int] = []
    ended = threading.Event()
    query = "SELECT min(due) FROM due"
    arguments = (engine, query, {}, lambda: calls.append(1), 0.0, ended.is_set)
    watching = threading.Thread(target=_sql.watch, args=arguments)
    watching.start()
    file = _sql.writer_of(engine).file  # type: ignore[union-attr]
    until(lambda: file.detached)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    until(lambda: file.detached)
    _sql.transact(engine, "Adding", lambda it: it.exec_driver_sql("INSERT INTO due VALUES (0)"))
    until(lambda: calls)
    ended.set()
    watching.join()
    _sql.dispose(engine)
