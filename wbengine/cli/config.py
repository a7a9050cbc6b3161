"""What is set, and by whom: flag, environment, file of the project, file of the user, default."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wbengine import _names
from wbengine.cli import errors
from wbengine.cli.settings_schema import DEFAULTS, SCHEMA, SECRETS, VARIABLES

__all__ = [
    "FLAG",
    "PROJECT",
    "VARIABLE",
    "File",
    "Settings",
    "check",
    "read",
    "read_files",
    "state_folder",
    "user_file",
]

PROJECT: Final = "wbengine.toml"
#: It names the file to read, as --config does.
VARIABLE: Final = "WBENGINE_CONFIG"
_PYPROJECT: Final = "pyproject.toml"
_TABLE: Final = ("tool", "wbengine")

#: Where a value came from, where that is no file or variable.
FLAG: Final = "flag"
DEFAULT: Final = "default"

#: How a command prints what it has found.
_PRINTING: Final = ("json", "color", "quiet")

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True)
class File:
    """A file of settings that was found."""

    path: Path
    content: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for this command; see `settings_schema` for what each setting is."""

    url: str | None
    exchange: str
    transport: str | None
    transport_options: Mapping[str, Any]
    ledger: str | None
    keys: str | None
    persistence: str | None
    board: str | None
    include: tuple[str, ...]
    flows: tuple[str, ...]
    timeout: float
    json: bool
    color: str
    quiet: bool
    log_level: str
    log_format: str
    schedules: Mapping[str, Mapping[str, Any]]
    #: Setting -> where its value came from: 'flag', a variable as '$NAME', a file, or 'default'.
    origins: Mapping[str, str]
    #: The files that were read, those that count more first.
    files: tuple[File, ...]

    @property
    def store(self) -> str:
        """The store of flows: what is set, else a folder of this user."""
        return self.persistence or _default_store()

    def origin(self, name: str) -> str:
        """Where a value came from, for an error line: `--url`, `$WBENGINE_URL`, `x.toml: url`."""
        found = self.origins.get(name, DEFAULT)
        if found == FLAG:
            return f"--{name.replace('_', '-')}"
        return found if found.startswith("$") or found == DEFAULT else f"{found}: {name}"

    def failing(
        self, name: str, *kinds: type[BaseException], what: str = ""
    ) -> contextlib.AbstractContextManager[None]:
        """Errors of these kinds say that the value of a setting cannot be used."""
        code = errors.USAGE if self.origins.get(name) == FLAG else errors.BAD_CONFIG
        where = f"{self.origin(name)}: {what}" if what else self.origin(name)
        return errors.failing(code, *kinds, where=where)

    def environment(self) -> dict[str, str]:
        """What options say, as variables, for a command that goes on with what this one does."""
        found: dict[str, str] = {}
        for name, origin in self.origins.items():
            if origin == FLAG and name not in _PRINTING:
                value = getattr(self, name)
                if isinstance(value, Mapping):
                    value = json.dumps(value)
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                found[VARIABLES[name][0]] = text
        return found


def _default_store() -> str:
    """Where flows are kept if nobody says where: a folder of this user that outlives a restart."""
    return f"dir://{state_folder() / 'flows'}"


def state_folder() -> Path:
    """Where what this user runs is kept: flows, and logs."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "wbengine")


def user_file() -> Path:
    """The file of this user, be it there or not."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "wbengine", "config.toml")


def read(given: Mapping[str, Any], files: Sequence[File]) -> Settings:
    """All settings: `given` are those of flags.

    :raises Failed: one of the environment is wrong.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [(FLAG, given), *_environment(), *((str(file.path), file.content) for file in files)]
    for origin, layer in layers:
        for name, value in layer.items():
            if name in SCHEMA["properties"] and name not in values:
                values[name], origins[name] = value, origin
    names = SCHEMA["properties"]
    origins = {name: origins.get(name, DEFAULT) for name in names}
    values = {name: values.get(name, DEFAULTS.get(name)) for name in names}
    values |= {name: tuple(values[name]) for name in ("include", "flows")}
    return Settings(**values, origins=origins, files=tuple(files))


def read_files(config: str | None, commands: Collection[str]) -> list[File]:
    """The files of settings there are, those that count more first; `config` replaces all of them.

    Keys of files that are among `commands` are tables of those commands' options.

    :raises Failed: one cannot be read, or holds what makes no sense.
    """
    if config is not None:
        path = Path(config)
        if not path.is_file():
            words = f"there is no file {config!r} (--config, or ${VARIABLE})"
            raise errors.Failed(words, errors.BAD_CONFIG)
        found = [_load(path, _TABLE if path.name == _PYPROJECT else ())]
    else:
        found = [_of_project(), _load(user_file(), ())]
    files = [file for file in found if file is not None]
    for file in files:
        _check(file, commands)
    return files


def _of_project() -> File | None:
    """`wbengine.toml`, else `[tool.wbengine]`, of this folder or the nearest above.

    :raises Failed: others than this user and root may have written it.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        found = _load(folder / PROJECT, ()) or _load(folder / _PYPROJECT, _TABLE)
        if found is not None:
            _check_writers(found.path, above=folder != here)
            return found
    return None


def _check_writers(path: Path, *, above: bool) -> None:
    """Refuse a file that others may have written: settings lead to code that is run.

    In the current folder a group may share the file.  A file above, which the user may not know of,
    and its folder, must not be writable by a group either.
    """
    shared = stat.S_IWGRP | stat.S_IWOTH if above else stat.S_IWOTH
    for each, found in [
        *([(path, path.lstat())] if path.is_symlink() else []),
        (path, path.stat()),
        *([(path.parent, path.parent.stat())] if above else []),
    ]:
        writers = found.st_mode & shared
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (os.geteuid(), 0):
            why = f"{each} belongs to {_user(found.st_uid)}, not to you or root"
            how = ""
        elif writers and not is_sticky and not stat.S_ISLNK(found.st_mode):
            who = "others" if writers & stat.S_IWOTH else "its group"
            why = f"{who} may write {each} (mode {stat.S_IMODE(found.st_mode):04o})"
            how = f", or chmod {'go' if above else 'o'}-w {shlex.quote(str(each))}"
        else:
            continue
        raise errors.Failed(
            f"{path} is not read: {why}; if you trust it, give --config {shlex.quote(str(path))}"
            f" (or ${VARIABLE}){how}",
            errors.BAD_CONFIG,
        )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name!r}"
    except KeyError:
        return f"user {uid}"


def _load(path: Path, table: tuple[str, ...]) -> File | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeError) as error:
        words = f"{path} cannot be read: {errors.reason(error)}"
        raise errors.Failed(words, errors.BAD_CONFIG) from error
    if table and ".".join(table) not in text and table[-1] not in text:
        return None
    toml = _toml()
    try:
        content = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise errors.Failed(f"{path} is no TOML: {error}", errors.BAD_CONFIG) from error
    for key in table:
        content = content.get(key)
        if not isinstance(content, dict):
            return None
    return File(path, content)


def _toml() -> Any:
    return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def _check(file: File, commands: Collection[str]) -> None:
    known = [*SCHEMA["properties"], *commands]
    for name, value in file.content.items():
        if name in SCHEMA["properties"]:
            check(f"{file.path}: {name}", name, value)
        elif name not in commands:
            raise errors.Failed(
                f"{file.path}: there is no setting {name!r}{_names.hint(name, known)}",
                errors.BAD_CONFIG,
            )
        elif not isinstance(value, Mapping):
            raise errors.Failed(
                f"{file.path}: {name} is {value!r}: it must be a table of the options of"
                f" 'wbengine {name}'",
                errors.BAD_CONFIG,
            )


def check(where: str, name: str, value: Any) -> None:
    """Refuse a value that a setting cannot have.

    :raises Failed: saying where it was found, what it is, and what it should be.
    """
    import jsonschema  # takes as long as all else, and most often there is nothing to check

    kind = SCHEMA["properties"][name]
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(kind).iter_errors(value)
    )
    if error is not None and error.absolute_path:  # in a table of it
        place = ".".join(str(key) for key in error.absolute_path)
        raise errors.Failed(f"{where}.{place}: {error.message}", errors.BAD_CONFIG)
    if error is not None:
        shown = "..." if name in SECRETS else json.dumps(value, default=str)
        near = _names.hint(value, kind.get("enum", ())) if isinstance(value, str) else ""
        raise errors.Failed(
            f"{where} is {shown}: it must be {_expected(kind)}{near}", errors.BAD_CONFIG
        )


def _expected(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return f"one of {', '.join(kind['enum'])}"
    if "pattern" in kind:
        return "1 to 120 of A-Z a-z 0-9 _ . -"
    return {
        "string": "a text, and not an empty one",
        "boolean": "true or false",
        "number": "a number of seconds above 0",
        "array": "a list of texts",
        "object": "a table",
    }[kind["type"]]


def _environment() -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, variables in VARIABLES.items():
        for variable in variables:
            text, where = _variable(variable, name in SECRETS)
            if text:
                value = _typed(name, text)
                if SCHEMA["properties"][name].get("type") != "string" or name == "exchange":
                    check(where, name, value)
                found.append((where, {name: value}))
                break
    return found


def _variable(variable: str, may_be_file: bool) -> tuple[str | None, str]:
    text = os.environ.get(variable)
    where = f"${variable}"
    path = os.environ.get(f"{variable}_FILE") if may_be_file else None
    if text or not path:
        return text, where
    try:
        return Path(path).read_text(encoding="utf-8").strip(), f"{where}_FILE"
    except (OSError, UnicodeError) as error:
        words = f"{where}_FILE: {path!r} cannot be read: {errors.reason(error)}"
        raise errors.Failed(words, errors.BAD_CONFIG) from error


def _typed(name: str, text: str) -> Any:
    """What a variable says; what it cannot say is left as it is, for `check` to refuse."""
    kind = SCHEMA["properties"][name].get("type")
    if kind == "boolean":
        word = text.strip().lower()
        return word in _TRUE if word in (*_TRUE, *_FALSE) else text
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        if kind == "number":
            return float(text)
        if kind == "object":
            return json.loads(text)
    except ValueError:
        pass
    return text
