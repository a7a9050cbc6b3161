"""The file of a folder: queues and a ledger in one SQLite database, for all processes of a host.

Each write is one statement that commits by itself, with triggers for what belongs to it: the file
is locked while SQLite works, never while a process waits for its interpreter.

It is not synced at each write.  What a loss of power takes away is known by the id of the boot: of
requests that are open in what is left, it is not known whether they ran, so a worker that nobody
has (`LOST`) holds them from then on.  Times are those of the monotonic clock, which is the same for
all processes since the host was booted.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from wbengine import _sqlite_files, exceptions
from wbengine.transports import _files

__all__ = ["FREE", "LOST", "NAME", "TURNS", "Folder", "now", "open_folder"]

LOG = logging.getLogger("wbengine.transports.filesystem")

_T = TypeVar("_T")
Rows = list[tuple[Any, ...]]

#: The time by which rows, messages and queues are old or young.
now: Final = time.monotonic

#: `taken` of a message that waits.  As large as any other, so that a message which is taken stays
#: where it is in the file.
FREE: Final = -(1 << 62)
#: A connection takes under so many numbers, from its own on.
TURNS: Final = 1 << 22
#: Who holds requests that may have run before the host lost its power.
LOST: Final = "lost-with-the-power"

NAME: Final = "wbengine.db"
_FORMAT: Final = 2
#: Of a folder of the version before.
_FORMER: Final = ("queues", "journal")

#: Bytes of the disk that are kept for what ends: requests are refused before.
_RESERVE: Final = 32 * 1024 * 1024
#: Seconds after which a process is told of that keeps others from writing.
_BUSY: Final = 1.5
#: Seconds after which who waits for it gives up.
_PATIENCE: Final = 10.0
#: Pages that are written before they are brought to their places in the file, and synced.
_CHECKPOINT: Final = 4000
_PAGE: Final = 4096

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
    holder = (SELECT worker FROM connection WHERE base = NEW.taken & ~{TURNS - 1})
  WHERE id = NEW.id AND epoch = NEW.epoch AND state = 0
    AND (SELECT worker FROM connection WHERE base = NEW.taken & ~{TURNS - 1}) IS NOT NULL;
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
  WHERE taken BETWEEN OLD.base AND OLD.base + {TURNS - 1};
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
  UPDATE request SET state = 1, holder = '{LOST}' WHERE state = 0 AND NOT NEW.is_whole;
END;
"""


class Folder:
    """The file of one folder, as this process has it open; for any thread.

    :raises TransportFailure: the folder cannot be used.
    """

    def __init__(self, root: str) -> None:
        self.users = 0
        self.root: Final = os.path.abspath(root)
        self._path: Final = f"{self.root}/{NAME}"
        self._digest = f"dir-{os.urandom(16).hex()}"
        self._told = 0.0
        #: When this process found last that another one kept all from writing.
        self.hindered = -math.inf
        self._begin_anew()
        with self._lock, self._failures(exceptions.TransportFailure):
            self._open()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = -1

    def forget(self) -> sqlite3.Connection | None:
        """In a child process: use the parent's connection no more; it must not be collected."""
        connection = self._connection
        self._begin_anew()
        return connection

    @property
    def digest(self) -> str:
        """Which one this is: the same text in every process."""
        return self._digest

    def release(self) -> None:
        """One user less; it is opened again should there be another one."""
        with self._lock:
            self.users -= 1
            if self.users <= 0:
                self._close()

    # -- statements

    def write(
        self,
        statement: str,
        values: Sequence[Any] = (),
        failure: type[exceptions.WbengineException] = exceptions.TransportFailure,
    ) -> int:
        """Do one statement that changes something: how many rows it did.

        :raises failure: it cannot be done, and nothing is.
        """
        return self._do(lambda it: it.execute(statement, values).rowcount, failure)

    def write_through(self, statement: str, values: Sequence[Any] = ()) -> int:
        """As `write`; rows that were changed by triggers count, too.

        :raises TransportFailure: it cannot be done, and nothing is.
        """

        def work(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            connection.execute(statement, values)
            return connection.total_changes - before

        return self._do(work, exceptions.TransportFailure)

    def read(
        self,
        statement: str,
        values: Sequence[Any] = (),
        failure: type[exceptions.WbengineException] = exceptions.TransportFailure,
    ) -> Rows:
        """All that one statement finds.

        :raises failure: it cannot be done.
        """
        return self._do(lambda it: it.execute(statement, values).fetchall(), failure)

    def check_room(self, failure: type[exceptions.WbengineException]) -> None:
        """See that there is more on the disk than what is kept for ends.

        :raises failure: there is not.
        """
        with self._failures(failure):
            disk = os.statvfs(self.root)
        room = disk.f_bavail * disk.f_frsize
        if room < _RESERVE:  # what was freed stays in the file
            ((pages,),) = self.read("PRAGMA freelist_count", (), failure)
            room += pages * _PAGE
        if room < _RESERVE:
            raise failure(
                f"folder {self.root}: No space left on device"
                f" (the last {_RESERVE >> 20} MB are kept for results)"
            )

    def _do(
        self,
        work: Callable[[sqlite3.Connection], _T],
        failure: type[exceptions.WbengineException],
    ) -> _T:
        with self._lock, self._failures(failure):
            if self._connection is None:
                self._open()
            elif not self._is_there():
                self._close()
                raise FileNotFoundError(self._path)
            assert self._connection is not None
            return self._when_free(self._connection, work)

    def _is_there(self) -> bool:
        """Whether what is open is what other processes find."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _when_free(self, connection: sqlite3.Connection, work: Callable[..., _T]) -> _T:
        """`work` as soon as no other process writes; one that does so for long is named."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return work(connection)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                self.hindered = now()
                who = _sqlite_files.describe_writer(self._path)
                if who is not None and time.monotonic() >= self._told:
                    self._told = time.monotonic() + _PATIENCE
                    LOG.warning("folder %s waits: %s", self.root, who)
                if time.monotonic() > until:
                    raise sqlite3.OperationalError(who or str(error)) from error

    @contextlib.contextmanager
    def _failures(self, failure: type[exceptions.WbengineException]) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise failure(f"folder {self.root} was removed") from error
        except OSError as error:
            raise failure(f"folder {self.root}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise failure(f"folder {self.root}: {error}") from error
        except exceptions.TransportFailure as error:
            if failure is exceptions.TransportFailure:
                raise
            raise failure(str(error)) from error

    # -- opening

    def _open(self) -> None:
        _files.make_folder(self.root)
        kind = _sqlite_files.network_kind(self.root)
        if kind is not None:
            raise exceptions.TransportFailure(
                f"folder {self.root} is on a file system of other hosts ({kind}), on which locks"
                " do not hold: use one of this host"
            )
        with _alone(self.root) as folder:
            if not os.path.exists(self._path):
                self._make()
            found = os.lstat(self._path)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise exceptions.TransportFailure(
                    f"{self._path} is no file of this user's: refusing to use it"
                )
            # Whoever closes it last leaves no log: one that is there was not brought home.
            whole = not Path(f"{self._path}-wal").exists()
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", _BUSY, isolation_level=None, uri=True,
                check_same_thread=False, cached_statements=256,
            )  # fmt: skip
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                # Where it is on, as in Debian, what is deleted is written once more, as zeros.
                connection.execute("PRAGMA secure_delete = OFF")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
                self._when_free(connection, lambda it: self._look(it, whole))
                if whole:  # from now on the log is there, whatever happens
                    os.fsync(folder)
            except BaseException:
                connection.close()
                raise
        self._inode = os.stat(self._path).st_ino
        self._connection = connection

    def _look(self, connection: sqlite3.Connection, whole: bool) -> None:
        ((format, self._digest, boot),) = connection.execute(
            "SELECT format, digest, boot FROM about"
        ).fetchall()
        if format < _FORMAT:
            raise self._outdated()
        if format > _FORMAT:
            raise exceptions.TransportFailure(
                f"folder {self.root} has format {format}, this version of wbengine knows"
                f" {_FORMAT}: use the version that made it"
            )
        if boot != _boot():
            if not whole:
                LOG.warning(
                    "folder %s: the host ended without warning; requests that waited count as lost",
                    self.root,
                )
            connection.execute(
                "UPDATE about SET boot = ?, is_whole = ?, booted = ?, queues_swept = ?3,"
                " rows_swept = ?3",
                (_boot(), whole, now()),
            )

    def _outdated(self) -> exceptions.TransportFailure:
        return exceptions.TransportFailure(
            f"folder {self.root} is of an earlier version of wbengine: end what is under way with"
            " that one, then remove the folder"
        )

    def _make(self) -> None:
        for name in _FORMER:
            if os.path.isdir(f"{self.root}/{name}"):
                raise self._outdated()
        new = f"{self._path}-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            connection.execute(
                "INSERT INTO about VALUES (?, ?, ?, 1, ?4, ?4, ?4, 0)",
                (_FORMAT, self._digest, _boot(), now()),
            )
        os.rename(new, self._path)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _boot() -> str:
    """The id of this boot of the host; the same text always where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def _alone(root: str) -> Iterator[int]:
    """Be the only one that opens a folder: the number by which it is open."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.002)
        yield fd
    finally:
        os.close(fd)


_folders: weakref.WeakValueDictionary[str, Folder] = weakref.WeakValueDictionary()
_opening = threading.Lock()
#: Connections of the parent process.
_inherited: list[sqlite3.Connection | None] = []


def open_folder(root: str) -> Folder:
    """The file of a folder, made when it is not there; `release` it when it is not needed.

    :raises TransportFailure: it cannot be used.
    """
    with _opening:
        key = os.path.realpath(root)
        found = _folders.get(key)
        if found is None:
            found = _folders[key] = Folder(root)
        found.users += 1
        return found


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _inherited.extend([folder.forget() for folder in _folders.values()])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
