"""Database of a folder: queues and a ledger in one SQLite file, for all processes of a host.

Each write is a single statement with its own transaction; triggers do the dependent changes. So the
file is locked only while SQLite works, never while a process waits for its interpreter.

Writes are not synced separately, so a power failure may lose the latest ones. A changed boot id
indicates such a loss. Open requests may then have run, so they get an owner that does not exist
(`LOST_OWNER`). Times are those of the monotonic clock, which all processes of a boot share.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from wbengine import exceptions
from wbengine._sqlite import sqlite_files
from wbengine._sqlite.fork_gate import ForkGate
from wbengine._text import data_formats
from wbengine.transports import _ledger
from wbengine.transports._folder import files

__all__ = ["FREE", "LOST_OWNER", "NAME", "MAX_TAKES", "Folder", "now", "open_folder"]

LOG = logging.getLogger(__name__)

_T = TypeVar("_T")
Rows = list[tuple[Any, ...]]
#: The values of a statement, by place or by name.
Values = Sequence[Any] | Mapping[str, Any]

#: Clock for the age of rows, messages and queues.
now: Final = time.monotonic

#: `taken` of a waiting message. It has the same encoded size as other values, so a message does not
#: move in the file when it is consumed.
FREE: Final = -(1 << 62)
#: Number of `taken` values of one connection, which start at its base number.
MAX_TAKES: Final = 1 << 22
#: Owner of requests that may have run before a power failure.
LOST_OWNER: Final = "lost-with-the-power"

NAME: Final = "wbengine.db"

#: Disk space reserved for results. Requests are refused if less is free.
_RESERVE_BYTES: Final = 32 * 1024 * 1024
#: Time after which a process that blocks writing is logged.
_SQLITE_TIMEOUT_SECONDS: Final = 1.5
_LOCK_TIMEOUT_SECONDS: Final = 10.0
#: Number of written pages after which SQLite checkpoints and syncs.
_CHECKPOINT_PAGES: Final = 4000
_PAGE_BYTES: Final = 4096

_SCHEMA: Final = f"""
CREATE TABLE about(format INTEGER PRIMARY KEY, digest TEXT NOT NULL, boot TEXT NOT NULL,
  is_whole INTEGER NOT NULL DEFAULT 1, booted REAL NOT NULL, queues_swept REAL NOT NULL,
  rows_swept REAL NOT NULL, routes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE connection(base INTEGER PRIMARY KEY, worker TEXT);
CREATE TABLE queue(name TEXT PRIMARY KEY, owner INTEGER, used REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE binding(exchange TEXT, key TEXT, queue TEXT, PRIMARY KEY (exchange, key, queue))
  WITHOUT ROWID;
CREATE TABLE message(n INTEGER PRIMARY KEY, queue TEXT NOT NULL, place INTEGER NOT NULL,
  at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT {FREE}, again INTEGER NOT NULL DEFAULT 0,
  id TEXT, epoch INTEGER, data BLOB, result_of TEXT);
CREATE INDEX message_taken ON message(taken, queue, place);
CREATE TABLE request(id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, state INTEGER NOT NULL,
  holder TEXT, changed REAL NOT NULL, taken INTEGER, message INTEGER, result BLOB) WITHOUT ROWID;
CREATE TABLE beat(holder TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE VIEW ended AS SELECT NULL AS id, NULL AS epoch, NULL AS holder, NULL AS n, NULL AS taken,
  NULL AS routes, NULL AS queues, NULL AS place, NULL AS at, NULL AS data;

CREATE TRIGGER claimed AFTER UPDATE OF taken ON message
WHEN NEW.taken <> {FREE} AND NEW.id IS NOT NULL BEGIN
  UPDATE request SET state = 1, changed = NEW.at, taken = NEW.taken, message = NEW.n,
    holder = (SELECT worker FROM connection WHERE base = NEW.taken & ~{MAX_TAKES - 1})
  WHERE id = NEW.id AND epoch = NEW.epoch AND state = 0
    AND (SELECT worker FROM connection WHERE base = NEW.taken & ~{MAX_TAKES - 1}) IS NOT NULL;
END;
CREATE TRIGGER held AFTER UPDATE OF state ON request WHEN NEW.state = 1 BEGIN
  INSERT INTO beat VALUES (NEW.holder, NEW.changed)
  ON CONFLICT DO UPDATE SET at = excluded.at WHERE at < excluded.at - 0.2;
END;
CREATE TRIGGER ending INSTEAD OF INSERT ON ended
WHEN NEW.routes = (SELECT routes FROM about) BEGIN
  UPDATE request SET state = 2, holder = NULL, result = NEW.data, changed = NEW.at
  WHERE id = NEW.id AND epoch = NEW.epoch AND state = 1 AND holder = NEW.holder;
  INSERT INTO message(queue, place, at, data, result_of)
  SELECT name, NEW.place, NEW.at, iif(changes(), NULL, NEW.data), iif(changes(), NEW.id, NULL)
  FROM json_each(NEW.queues) JOIN queue ON name = json_each.value
  WHERE NOT EXISTS
    (SELECT 1 FROM request WHERE id = NEW.id AND (epoch <> NEW.epoch OR state <> 2));
  DELETE FROM message WHERE n = NEW.n AND taken = NEW.taken;
END;
CREATE TRIGGER homeless AFTER UPDATE OF taken ON message
WHEN NEW.taken = {FREE} AND NOT EXISTS (SELECT 1 FROM queue WHERE name = NEW.queue) BEGIN
  DELETE FROM message WHERE n = NEW.n;
END;
CREATE TRIGGER disconnected AFTER DELETE ON connection BEGIN
  DELETE FROM queue WHERE owner = OLD.base;
  UPDATE message SET taken = {FREE}, again = 1
  WHERE taken BETWEEN OLD.base AND OLD.base + {MAX_TAKES - 1};
END;
CREATE TRIGGER queue_made AFTER INSERT ON queue BEGIN
  UPDATE about SET routes = routes + 1;
END;
CREATE TRIGGER queue_gone AFTER DELETE ON queue BEGIN
  DELETE FROM message WHERE taken = {FREE} AND queue = OLD.name;
  DELETE FROM binding WHERE queue = OLD.name;
  UPDATE about SET routes = routes + 1;
END;
CREATE TRIGGER bound AFTER INSERT ON binding BEGIN
  UPDATE about SET routes = routes + 1;
END;
CREATE TRIGGER unbound AFTER DELETE ON binding BEGIN
  UPDATE about SET routes = routes + 1;
END;
CREATE TRIGGER booted AFTER UPDATE OF boot ON about BEGIN
  DELETE FROM connection;
  DELETE FROM beat;
  UPDATE message SET at = NEW.booted;
  UPDATE queue SET used = NEW.booted;
  UPDATE request SET changed = NEW.booted;
  UPDATE request SET state = 1, holder = '{LOST_OWNER}'
    WHERE state = 0 AND NOT NEW.is_whole AND id NOT GLOB '{_ledger.FENCE_PREFIX}*';
END;
"""

#: Opens rows and publishes their requests. Each connection creates it.
_OPENED: Final = """
CREATE TEMP VIEW IF NOT EXISTS opened AS
  SELECT NULL AS id, NULL AS epoch, NULL AS fence, NULL AS run,
  NULL AS routes, NULL AS queues, NULL AS place, NULL AS at, NULL AS data;
CREATE TEMP TRIGGER IF NOT EXISTS opening INSTEAD OF INSERT ON opened
WHEN NEW.routes = (SELECT routes FROM about)
  AND NOT EXISTS (SELECT 1 FROM request WHERE id = NEW.fence AND epoch > NEW.run) BEGIN
  INSERT INTO request(id, epoch, state, changed) VALUES (NEW.id, NEW.epoch, 0, NEW.at)
  ON CONFLICT DO UPDATE SET epoch = excluded.epoch, changed = excluded.changed
  WHERE state = 0 AND epoch < excluded.epoch;
  INSERT INTO message(queue, place, at, id, epoch, data)
  SELECT name, NEW.place, NEW.at, NEW.id, NEW.epoch, NEW.data
  FROM json_each(NEW.queues) JOIN queue ON name = json_each.value;
END;
"""


class Folder:
    """Open database of one folder in this process. Thread-safe.

    :raises TransportFailure: if the folder cannot be used.
    """

    def __init__(self, root: str) -> None:
        self.users = 0
        self.root: Final = os.path.abspath(root)
        self._path: Final = f"{self.root}/{NAME}"
        #: Identifier of this folder, equal in all processes.
        self.digest = f"dir-{os.urandom(16).hex()}"
        self._next_warning_at = 0.0
        #: Time at which another process last blocked writing.
        self.last_blocked_at = -math.inf
        self._reset()
        with _fork_gate, self._lock, self._failures():
            self._open()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = -1

    def forget(self) -> sqlite3.Connection | None:
        """Forget the connection of the parent process. For a child that was not forked by Python.

        :returns: the connection, which must not be garbage-collected.
        """
        connection = self._connection
        self._reset()
        return connection

    def release(self) -> None:
        """Remove one user. The last one closes the database, which reopens on demand."""
        with _fork_gate, self._lock:
            self.users -= 1
            if self.users <= 0:
                self.close()

    def write(self, statement: str, values: Values = ()) -> int:
        """Execute one statement and return the number of changed rows.

        :raises TransportFailure: if it fails. Nothing is changed then.
        """
        return self._do(lambda it: it.execute(statement, values).rowcount)

    def write_through(self, statement: str, values: Values) -> int:
        """Execute one statement and return the number of changed rows, including those of triggers.

        :raises TransportFailure: if it fails. Nothing is changed then.
        """

        def work(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            connection.execute(statement, values)
            return connection.total_changes - before

        return self._do(work)

    def read(self, statement: str, values: Values = ()) -> Rows:
        """Execute one statement and return all its rows.

        :raises TransportFailure: if it fails.
        """
        return self._do(lambda it: it.execute(statement, values).fetchall())

    def check_room(self) -> None:
        """Check that the disk has more free space than the reserve for results.

        :raises TransportFailure: if it has less.
        """
        with self._failures():
            disk = os.statvfs(self.root)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < _RESERVE_BYTES:  # Free pages of the file can also be used.
            ((pages,),) = self.read("PRAGMA freelist_count")
            free_bytes += pages * _PAGE_BYTES
        if free_bytes < _RESERVE_BYTES:
            raise exceptions.TransportFailure(
                f"folder {self.root}: No space left on device (the last {_RESERVE_BYTES >> 20}"
                " MB are reserved for results)"
            )

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with _fork_gate, self._lock, self._failures():
            if self._connection is None:
                self._open()
            elif not self._has_path():
                self.close()
                raise FileNotFoundError(self._path)
            assert self._connection is not None
            return self._run_when_free(self._connection, work)

    def _has_path(self) -> bool:
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _run_when_free(self, connection: sqlite3.Connection, work: Callable[..., _T]) -> _T:
        """Run `work` when no other process writes. Log a process that blocks for a long time."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                return work(connection)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                self.last_blocked_at = now()
                writer = sqlite_files.describe_writer(self._path)
                if writer is not None and time.monotonic() >= self._next_warning_at:
                    self._next_warning_at = time.monotonic() + _LOCK_TIMEOUT_SECONDS
                    LOG.warning("folder %s waits: %s", self.root, writer)
                if time.monotonic() > deadline:
                    raise sqlite3.OperationalError(writer or str(error)) from error

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise exceptions.TransportFailure(f"folder {self.root} was deleted") from error
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise exceptions.TransportFailure(f"folder {self.root}: {reason}") from error

    def _open(self) -> None:
        files.make_folder(self.root)
        kind = sqlite_files.network_kind(self.root)
        if kind is not None:
            raise exceptions.TransportFailure(
                f"folder {self.root} is on a network file system ({kind}), where locks are"
                " not safe: use a local folder"
            )
        with _locked_folder(self.root) as folder:
            if not os.path.exists(self._path):
                self._create()
            status = os.lstat(self._path)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise exceptions.TransportFailure(
                    f"{self._path} must be a regular file of this user"
                )
            # The last process that closes the database removes the log. An existing log therefore
            # means that the last changes are not checkpointed.
            is_checkpointed = not Path(f"{self._path}-wal").exists()
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", timeout=_SQLITE_TIMEOUT_SECONDS,
                isolation_level=None, uri=True, check_same_thread=False, cached_statements=256,
            )  # fmt: skip
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                # Some builds, such as Debian's, enable it, which overwrites deleted data.
                connection.execute("PRAGMA secure_delete = OFF")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
                self._run_when_free(connection, lambda it: self._check_format(it, is_checkpointed))
                self._run_when_free(connection, lambda it: it.executescript(_OPENED))
                if is_checkpointed:  # A crash after this leaves the log.
                    os.fsync(folder)
            except BaseException:
                connection.close()
                raise
        self._inode = os.stat(self._path).st_ino
        self._connection = connection

    def _check_format(self, connection: sqlite3.Connection, is_checkpointed: bool) -> None:
        ((format, self.digest, boot),) = connection.execute(
            "SELECT format, digest, boot FROM about"
        ).fetchall()
        data_formats.FOLDER.check(f"folder {self.root}", format, exceptions.TransportFailure)
        if boot != _boot():
            if not is_checkpointed:
                LOG.warning(
                    "folder %s: the host stopped unexpectedly; open requests are treated"
                    " as lost with their workers",
                    self.root,
                )
            connection.execute(
                "UPDATE about SET boot = ?, is_whole = ?, booted = ?, queues_swept = ?,"
                " rows_swept = ?",
                (_boot(), is_checkpointed, *[now()] * 3),
            )

    def _create(self) -> None:
        new = f"{self._path}-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            connection.execute(
                "INSERT INTO about VALUES (?, ?, ?, 1, ?, ?, ?, 0)",
                (data_formats.FOLDER.written, self.digest, _boot(), *[now()] * 3),
            )
        os.rename(new, self._path)

    def close(self) -> None:
        """Close the database, which reopens on demand. No other thread may use it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _boot() -> str:
    """Return the id of this boot of the host, or '' if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def _locked_folder(root: str) -> Iterator[int]:
    """Lock a folder exclusively while it is opened, and return its descriptor."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
        yield fd
    finally:
        os.close(fd)


_folders: weakref.WeakValueDictionary[str, Folder] = weakref.WeakValueDictionary()
_opening = threading.Lock()
_inherited: list[sqlite3.Connection | None] = []


def open_folder(root: str) -> Folder:
    """Open the database of a folder; create it if necessary. The caller must `release` it.

    :raises TransportFailure: if the folder cannot be used.
    """
    with _opening:
        key = os.path.realpath(root)
        folder = _folders.get(key)
        if folder is None:
            folder = _folders[key] = Folder(root)
        folder.users += 1
        return folder


def _close_folders() -> None:
    for folder in list(_folders.values()):
        folder.close()


_fork_gate: Final = ForkGate(_close_folders)


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _inherited.extend([folder.forget() for folder in _folders.values()])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
