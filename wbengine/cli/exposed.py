"""Files with secrets that others than this user can read, or change."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wbengine.cli import errors
from wbengine.cli.settings_schema import SECRETS, VARIABLES

if TYPE_CHECKING:
    from wbengine.cli.context import Context

__all__ = ["Exposed", "found", "refuse"]

#: Who else may see, or change, what is in a file.
_OTHERS: Final = 0o066
#: The group of what root mounts for this process is its own, as in Kubernetes.
_MOUNTED: Final = 0o026
#: What the dashboard lets in, as its options in files and in the environment.
_OF_DASHBOARD: Final = ("token_file", "users_file", "users")


@dataclass(frozen=True, slots=True)
class Exposed:
    """A file, what it is, and its mode."""

    path: Path
    what: str
    mode: int

    def __str__(self) -> str:
        does = "change" if self.mode & 0o022 else "read"
        return f"others can {does} {self.path}, {self.what} (mode {self.mode:04o})"

    @property
    def fix(self) -> str:
        return f"chmod go-rwx {shlex.quote(str(self.path))}"


def found(context: Context) -> list[Exposed]:
    """Those of a command's files that are exposed: files of settings that hold secrets, files that
    variables and options name, the key file, databases in files.
    """
    exposed: dict[Path, Exposed] = {}
    for path, what in _files(context):
        try:
            seen = path.stat()
        except OSError:
            continue  # whoever needs it says so
        mounted = seen.st_uid == 0 and os.geteuid() != 0
        if stat.S_ISREG(seen.st_mode) and seen.st_mode & (_MOUNTED if mounted else _OTHERS):
            exposed.setdefault(path, Exposed(path, what, stat.S_IMODE(seen.st_mode)))
    return list(exposed.values())


def refuse(context: Context) -> None:
    """
    :raises Failed: a file with secrets is exposed.
    """
    exposed = found(context)
    if exposed:
        how = "; ".join(f"{one}: {one.fix}" for one in exposed)
        raise errors.Failed(f"--strict: {how}", errors.BAD_CONFIG)


def _files(context: Context) -> Iterator[tuple[Path, str]]:
    from wbengine import _secrets

    settings = context.settings
    for file in settings.files:
        text = file.path.read_text(encoding="utf-8")
        if _secrets.masked(text) != text:
            yield file.path, "a file of settings with secrets"
        table = file.content.get("dashboard", {})
        for name in _OF_DASHBOARD:
            for key in (name, name.replace("_", "-")):
                if isinstance(table.get(key), str):
                    yield Path(table[key]), "which lets in to the dashboard"
    for setting in SECRETS:
        for variable in VARIABLES[setting]:
            if path := os.environ.get(f"{variable}_FILE"):
                yield Path(path), f"which ${variable}_FILE names"
    for name in _OF_DASHBOARD:
        if path := os.environ.get(f"WBENGINE_DASHBOARD_{name.upper()}"):
            yield Path(path), "which lets in to the dashboard"
    if settings.keys is not None:
        yield Path(settings.keys), "the key file"
    for url in (settings.store, settings.ledger, settings.board):
        for each in _databases(url or ""):
            yield each, "a database with arguments and results"


def _databases(url: str) -> list[Path]:
    """The files of a database in a file."""
    kind, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    if kind == "dir":
        place = f"{place}/flows.db"
    elif kind.partition("+")[0] == "sqlite" and place.startswith("/"):
        place = place[1:]
    else:
        return []
    return [Path(f"{place}{end}") for end in ("", "-wal", "-shm")]
