"""A simulated file system in a temporary folder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from wbengine.testing._worlds.contents import Contents
from wbengine.testing._worlds.values import MISSING, ValueWorld

__all__ = ["FolderWorld"]


class FolderWorld(ValueWorld):
    """A folder for `crash_everywhere`, with files on disk. Thread-safe.

    It is empty at the begin of each run. A file is an effect: it has to be deleted when the flow is
    reverted. It may be written again with the same content. Only changes by these methods are
    observed. Names are relative to the folder, with "/".

    :param name: its name in reports.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._paths: Final = weakref.WeakKeyDictionary[Contents, Path]()

    @property
    def path(self) -> Path:
        """The temporary folder of the run."""
        with self._lock:
            path = self._paths.get(self._contents)
            if path is None:
                path = self._paths[self._contents] = Path(tempfile.mkdtemp(prefix="wbe-world-"))
                weakref.finalize(self._contents, shutil.rmtree, path, ignore_errors=True)
            return path

    def _open(self) -> None:
        _ = self.path

    @property
    def names(self) -> list[str]:
        """The names of all files."""
        return sorted(self._names())

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""
        return self._value(_checked(name)) is not MISSING

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        :raises FileNotFoundError: if it does not exist.
        """
        content: bytes = self._existing(name)
        return content

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file as a whole. Its folders are created. Text is encoded as UTF-8."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        self._change(_checked(name), data)

    def rename(self, name: str, new: str) -> None:
        """Rename a file. An existing file with the new name is replaced.

        :raises FileNotFoundError: if it does not exist.
        """
        with self._lock:
            content = self._existing(name)
            if _checked(new) != name:
                self._change(new, content, moved_from=name)

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a file.

        :raises FileNotFoundError: if it does not exist, unless this is accepted.
        """
        with self._lock:
            if not missing_ok:
                self._existing(name)
            self._change(_checked(name), MISSING)

    def _existing(self, name: str) -> Any:
        value = self._value(_checked(name))
        if value is MISSING:
            raise FileNotFoundError(f"{self.name} contains no file {name!r}")
        return value

    def _apply(self, changed: Mapping[str, Any]) -> None:
        for name, content in changed.items():
            path = self.path / name
            if content is MISSING:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    if str(path) != name or path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"The name of a file must be relative, such as 'out/a.csv', got {name!r}")
    return name
