"""Contents of a disk after a power failure or a killed process, at any point of a program.

The program runs under `strace`. Its calls on the files of one folder are repeated on a model of
the disk. Unsynced data is kept or lost, as requested.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tools import _servers

#: System calls that change files or file descriptors.
_CALLS: Final = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,ftruncate,"
    "truncate,fallocate,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,"
    "link,linkat,mkdir,mkdirat,rmdir,mknod,mknodat"
)
_LINE: Final = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")
_STARTED: Final = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Call(NamedTuple):
    """Successful call: name, arguments (bytes, or text as printed by `strace`) and result."""

    name: str
    arguments: Sequence[bytes | str]
    returned: int


def trace(arguments: Sequence[str], log: Path) -> list[Call]:
    """Return the calls of a program on files.

    Skip the test if programs cannot be traced, unless `CI` is set.
    """
    strace = _servers.find("strace")
    options = ["-f", "-xx", "-s", "100000000", "-o", str(log), "-e", f"trace={_CALLS}"]
    if strace is None or subprocess.run([strace, *options, "true"], check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail(f"programs cannot be traced: {_servers.reason(['strace'])}")
        pytest.skip("programs cannot be traced here")
    done = subprocess.run(
        [strace, *options, *arguments], check=False, capture_output=True, text=True, cwd=os.getcwd()
    )
    assert not done.returncode, done.stderr
    return list(_calls(log.read_text(encoding="ascii").splitlines()))


def _calls(lines: list[str]) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in lines:
        if started := _STARTED.match(line):
            begun[started[1]] = f"{started[1]} {started[2]}"
            continue
        if resumed := _RESUMED.match(line):
            line = begun.pop(resumed[1]) + resumed[2]
        if (match := _LINE.match(line)) and int(match[3]) >= 0:
            yield Call(match[1], _arguments(match[2]), int(match[3]))


def _arguments(text: str) -> list[bytes | str]:
    """Return texts as bytes and other arguments as printed."""
    texts = [bytes.fromhex(each.replace("\\x", "")) for each in _TEXT.findall(text)]
    arguments: list[bytes | str] = []
    for word in _TEXT.sub('"', text).split(", "):
        arguments.append(texts.pop(0) if word == '"' else word)
        if word != '"':
            texts = texts[word.count('"') :]
    return arguments


class _File:
    """File; `kept` is the synced content."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.kept = b""

    def sync(self) -> None:
        self.kept = bytes(self.data)


class _Pipe(_File):
    """Named pipe, which stores no data."""


class _Folder:
    """Folder; `kept` are the synced entries."""

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.kept: dict[str, _File | _Folder] = {}

    def sync(self) -> None:
        self.kept = dict(self.names)


class _Open:
    """Open file or folder."""

    def __init__(self, path: str, what: _File | _Folder, append: bool) -> None:
        self.path, self.what, self.append = path, what, append
        self.at = 0


class Disk:
    """Model of the initially empty folder `root`."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._top = _Folder()
        self._open: dict[int, _Open] = {}

    def do(self, call: Call) -> bool:
        """Repeat a call; return True if it changed anything."""
        step = getattr(self, f"_{call.name.removesuffix('64').rstrip('23')}", None)
        assert step is not None, f"nobody knows what {call.name} does"
        return bool(step(call.returned, *call.arguments))

    def leave(self, target: Path, *, names: bool, data: bool) -> None:
        """Write the remaining files to `target`.

        Write only synced names and data, or all if `names` or `data` is true.
        """
        self._leave(self._top, target, names, data)

    def _leave(self, folder: _Folder, target: Path, names: bool, data: bool) -> None:
        target.mkdir(0o700)
        for name, what in (folder.names if names else folder.kept).items():
            if isinstance(what, _Folder):
                self._leave(what, target / name, names, data)
            elif not isinstance(what, _Pipe):
                (target / name).write_bytes(what.data if data else what.kept)

    # Names.

    def _find(self, folder: bytes | str, name: bytes | str) -> tuple[_Folder, str, str] | None:
        """Return the folder of a name, its name there and its path; None outside `root`."""
        assert isinstance(name, bytes), name
        path = os.fsdecode(name)
        if not os.path.isabs(path):
            known = None if folder == "AT_FDCWD" else self._open.get(int(folder))
            if known is None:
                return None
            path = os.path.join(known.path, path)
        path = os.path.normpath(path)
        if not path.startswith(f"{self._root}/"):
            return None
        within: _File | _Folder = self._top
        *parents, last = path[len(self._root) + 1 :].split("/")
        for parent in parents:
            assert isinstance(within, _Folder)
            within = within.names[parent]
        assert isinstance(within, _Folder)
        return within, last, path

    def _openat(self, fd: int, folder: Any, name: Any, flags: Any, *mode: Any) -> bool:
        self._open.pop(fd, None)
        if os.path.normpath(os.fsdecode(name)) == self._root:
            self._open[fd] = _Open(self._root, self._top, False)
            return False
        entry = self._find(folder, name)
        if entry is None:
            return False
        within, last, path = entry
        new = last not in within.names
        if new:
            assert "O_CREAT" in flags, f"{path} was made by somebody who is not traced"
            within.names[last] = _File()
        what = within.names[last]
        if isinstance(what, _Pipe):
            return False
        self._open[fd] = _Open(path, what, "O_APPEND" in flags)
        if "O_TRUNC" in flags and isinstance(what, _File) and what.data:
            what.data.clear()
            return True
        return new

    def _close(self, _: int, fd: Any) -> None:
        self._open.pop(int(fd), None)

    def _dup(self, new: int, fd: Any, *more: Any) -> None:
        self._open.pop(new, None)
        if int(fd) in self._open:
            self._open[new] = self._open[int(fd)]

    def _fcntl(self, new: int, fd: Any, what: Any, *more: Any) -> None:
        if "F_DUPFD" in what:
            self._dup(new, fd)

    def _mkdirat(self, _: int, folder: Any, name: Any, *mode: Any) -> bool:
        entry = self._find(folder, name)
        if entry is not None:
            entry[0].names[entry[1]] = _Folder()
        return entry is not None

    def _mkdir(self, done: int, name: Any, *mode: Any) -> bool:
        return self._mkdirat(done, "AT_FDCWD", name)

    def _mknodat(self, _: int, folder: Any, name: Any, mode: Any, *device: Any) -> bool:
        assert "S_IFIFO" in mode
        entry = self._find(folder, name)
        if entry is not None:
            entry[0].names[entry[1]] = _Pipe()
        return entry is not None

    def _mknod(self, done: int, name: Any, mode: Any, *device: Any) -> bool:
        return self._mknodat(done, "AT_FDCWD", name, mode)

    def _renameat(self, _: int, folder: Any, name: Any, into: Any, new: Any, *flags: Any) -> bool:
        old, target = self._find(folder, name), self._find(into, new)
        if old is None or target is None:
            return False
        assert "RENAME_EXCHANGE" not in flags
        target[0].names[target[1]] = old[0].names.pop(old[1])
        return True

    def _rename(self, done: int, name: Any, new: Any) -> bool:
        return self._renameat(done, "AT_FDCWD", name, "AT_FDCWD", new)

    def _linkat(self, _: int, folder: Any, name: Any, into: Any, new: Any, *flags: Any) -> bool:
        old, target = self._find(folder, name), self._find(into, new)
        if old is None or target is None:
            return False
        target[0].names[target[1]] = old[0].names[old[1]]
        return True

    def _link(self, done: int, name: Any, new: Any) -> bool:
        return self._linkat(done, "AT_FDCWD", name, "AT_FDCWD", new)

    def _unlinkat(self, _: int, folder: Any, name: Any, *flags: Any) -> bool:
        entry = self._find(folder, name)
        return entry is not None and entry[0].names.pop(entry[1], None) is not None

    def _unlink(self, done: int, name: Any) -> bool:
        return self._unlinkat(done, "AT_FDCWD", name)

    _rmdir = _unlink

    # Data.

    def _file(self, fd: Any) -> _File | None:
        known = self._open.get(int(fd))
        return known.what if known is not None and isinstance(known.what, _File) else None

    def _lseek(self, at: int, fd: Any, *more: Any) -> None:
        if int(fd) in self._open:
            self._open[int(fd)].at = at

    def _write(self, done: int, fd: Any, data: Any, size: Any) -> bool:
        file = self._file(fd)
        if file is None:
            return False
        known = self._open[int(fd)]
        known.at = (len(file.data) if known.append else known.at) + done
        return self._pwrite(done, fd, data, size, known.at - done)

    def _pwrite(self, done: int, fd: Any, data: Any, size: Any, at: Any) -> bool:
        file = self._file(fd)
        if file is None:
            return False
        place = int(at)
        file.data.extend(bytes(max(0, place - len(file.data))))
        file.data[place : place + done] = data[:done]
        return True

    def _truncate(self, _: int, name: Any, size: Any) -> bool:
        entry = self._find("AT_FDCWD", name)
        return entry is not None and self._cut(entry[0].names[entry[1]], size)

    def _ftruncate(self, _: int, fd: Any, size: Any) -> bool:
        return self._cut(self._file(fd), size)

    def _cut(self, file: _File | _Folder | None, size: Any) -> bool:
        if not isinstance(file, _File):
            return False
        del file.data[int(size) :]
        file.data.extend(bytes(int(size) - len(file.data)))
        return True

    def _fsync(self, _: int, fd: Any) -> bool:
        if known := self._open.get(int(fd)):
            known.what.sync()
        return known is not None

    _fdatasync = _fsync

    def _unread(self, _: int, fd: Any, *more: Any) -> bool:
        assert int(fd) not in self._open, "a call that nobody reads here"
        return False

    _writev = _pwritev = _fallocate = _sync_file_range = _unread
