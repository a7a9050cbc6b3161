"""Files with secrets that other users can read or change."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wbengine._cli import errors
from wbengine._cli.settings_schema import SECRETS, VARIABLES
from wbengine._security import masking

if TYPE_CHECKING:
    from wbengine._cli.context import Context

__all__ = ["ExposedFile", "find", "refuse"]

#: Forbidden permission bits: access by the group or by others.
_FORBIDDEN_BITS: Final = 0o066
#: Forbidden bits of files that root mounts for this process: their group is that of the process, as
#: in Kubernetes.
_FORBIDDEN_BITS_OF_MOUNTS: Final = 0o026
#: Options of the dashboard that name files with tokens.
_DASHBOARD_OPTIONS: Final = ("token_file", "users")


@dataclass(frozen=True, slots=True)
class ExposedFile:
    """An exposed file: its path, a description of its content, and its mode."""

    path: Path
    description: str
    mode: int

    def __str__(self) -> str:
        does = "change" if self.mode & 0o022 else "read"
        return f"other users can {does} {self.path}, {self.description} (mode {self.mode:04o})"

    @property
    def fix(self) -> str:
        return f"chmod go-rwx {shlex.quote(str(self.path))}"


def find(context: Context) -> list[ExposedFile]:
    """Return the exposed files among those that the command uses.

    These are files of settings with secrets, files that variables and options name, the key file,
    and database files.
    """
    exposed: dict[Path, ExposedFile] = {}
    for path, description in _files(context):
        try:
            status = path.stat()
        except OSError:
            continue  # the code that reads the file reports the error
        mounted = status.st_uid == 0 and os.geteuid() != 0
        if stat.S_ISREG(status.st_mode) and status.st_mode & (
            _FORBIDDEN_BITS_OF_MOUNTS if mounted else _FORBIDDEN_BITS
        ):
            exposed.setdefault(path, ExposedFile(path, description, stat.S_IMODE(status.st_mode)))
    return list(exposed.values())


def refuse(context: Context) -> None:
    """Reject exposed files.

    :raises Failed: if a file with secrets is exposed.
    """
    exposed = find(context)
    if exposed:
        advice = "; ".join(f"{file}: {file.fix}" for file in exposed)
        raise errors.Failed(f"--strict: {advice}", errors.BAD_CONFIG)


def _files(context: Context) -> Iterator[tuple[Path, str]]:
    settings = context.settings
    for file in settings.files:
        text = file.path.read_text(encoding="utf-8")
        if masking.masked(text) != text:
            yield file.path, "a file of settings with secrets"
        table = file.content.get("dashboard", {})
        for name in _DASHBOARD_OPTIONS:
            for key in (name, name.replace("_", "-")):
                if isinstance(table.get(key), str):
                    yield Path(table[key]), "a file with tokens of the dashboard"
    to = settings.notify.get("to", {})
    for name, value in (pair for table in to.values() for pair in table.items()):
        if name.endswith("_file") and name != "ca_file":
            yield Path(value), "a file with a secret of a destination of notifications"
    if "client_secret_file" in settings.oidc:
        yield Path(settings.oidc["client_secret_file"]), "the secret of the sign-in"
    for setting in SECRETS:
        variable = VARIABLES[setting]
        if path := os.environ.get(f"{variable}_FILE"):
            yield Path(path), f"the file in ${variable}_FILE"
    for name in _DASHBOARD_OPTIONS:
        if path := os.environ.get(f"WBENGINE_DASHBOARD_{name.upper()}"):
            yield Path(path), "a file with tokens of the dashboard"
    if settings.keys is not None:
        yield Path(settings.keys), "the key file"
    for url in (settings.store, settings.ledger, settings.board):
        for each in _databases(url or ""):
            yield each, "a database with arguments and results"


def _databases(url: str) -> list[Path]:
    kind, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    if kind == "dir":
        place = f"{place}/flows.db"
    elif kind.partition("+")[0] == "sqlite" and place.startswith("/"):
        place = place[1:]
    else:
        return []
    return [Path(f"{place}{end}") for end in ("", "-wal", "-shm")]
