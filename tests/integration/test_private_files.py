"""Permissions of files and folders on this host."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.transports import connection
from wbengine import engines, exceptions, task
from wbengine.engines.worker_based.ledger import open_ledger
from wbengine.persistence import backends


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Clear the umask, so that new files are public unless their mode is set."""
    before = os.umask(0)
    yield
    os.umask(before)


class Nothing(task.Task):
    def execute(self) -> None:
        pass


def modes(folder: Path) -> dict[str, int]:
    found = {path.name: path.stat().st_mode for path in folder.rglob("*")}
    return {name: stat.S_IMODE(mode) for name, mode in found.items() if stat.S_ISREG(mode)}


@pytest.mark.parametrize("url", ["sqlite:///{}/flows.db", "dir://{}"])
def test_store_files_are_accessible_to_their_owner_only(url: str, tmp_path: Path) -> None:
    with contextlib.closing(backends.fetch(url.format(tmp_path))) as store:
        with contextlib.closing(store.get_connection()) as connection:
            connection.upgrade()
        engines.load(Nothing(), backend=store)
        found = modes(tmp_path)
        assert {"flows.db", "flows.db-wal", "flows.db-shm"} <= set(found)
        assert set(found.values()) == {0o600}
    (tmp_path / "flows.db").chmod(0o640)
    with contextlib.closing(backends.fetch(url.format(tmp_path))) as store:
        engines.load(Nothing(), backend=store)
        assert modes(tmp_path)["flows.db"] == 0o640


def test_ledger_file_is_accessible_to_its_owner_only(tmp_path: Path) -> None:
    with contextlib.closing(open_ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.open("a" * 32, 1)
        assert set(modes(tmp_path).values()) == {0o600}


def connect(root: Path) -> None:
    with connection(f"filesystem://{root}") as made:
        made.broker.declare_queue("q")
        made.broker.watch("q")


@pytest.mark.parametrize("name", ["holders", "bells"])
def test_broker_subfolder_of_another_user_or_symlink_is_refused(name: str, tmp_path: Path) -> None:
    root, path, other = tmp_path / "broker", tmp_path / "broker" / name, tmp_path / "other"
    os.mkdir(root, 0o755)  # as users create it
    connect(root)
    path.chmod(0o750)
    with pytest.raises(exceptions.TransportFailure, match=f"{name} is open to other users"):
        connect(root)
    path.chmod(0o700)
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(exceptions.TransportFailure, match=f"{name} is a symlink"):
        connect(root)
    path.unlink()
    other.rename(path)
    connect(root)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(exceptions.TransportFailure, match=f"{name} belongs to user id 12345"):
            connect(root)


@pytest.mark.parametrize("kind", ["broker", "ledger"])
def test_database_file_in_folder_is_private_and_must_not_be_a_symlink(
    kind: str, tmp_path: Path
) -> None:
    root, file, other = tmp_path / "root", tmp_path / "root" / "wbengine.db", tmp_path / "other"
    os.mkdir(root, 0o755)
    with connection(f"filesystem://{root}") as made:
        made.broker.declare_queue("q")
        assert set(modes(root).values()) == {0o600} and len(modes(root)) >= 3
    file.rename(other)
    file.symlink_to(other)
    with pytest.raises(exceptions.WbengineException, match="must be a regular file of this user"):
        _ = connect(root) if kind == "broker" else open_ledger(f"dir://{root}")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722, 0o1777])
@pytest.mark.parametrize("kind", ["broker", "ledger"])
def test_folder_writable_by_other_users_is_refused(kind: str, mode: int, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(exceptions.WbengineException, match="can be written by other users"):
        _ = connect(root) if kind == "broker" else open_ledger(f"dir://{root}")
    root.chmod(0o755)
    _ = connect(root) if kind == "broker" else open_ledger(f"dir://{root}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_symlink_of_another_user_is_refused(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(0o700)
    link.symlink_to(mine)
    connect(link)
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(exceptions.TransportFailure, match="link is a symlink"):
        connect(link)
