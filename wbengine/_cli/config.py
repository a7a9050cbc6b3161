"""Values of settings and their sources.

Sources in order of precedence: options, environment variables, the file of the project, the file
of the user, defaults.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wbengine._cli import errors, settings_schema
from wbengine._cli.settings_schema import DEFAULTS, SCHEMA, SECRETS, SETTINGS, VARIABLES
from wbengine._configuration import default_broker
from wbengine._imports import search_path
from wbengine._introspection import object_names

__all__ = [
    "FLAG",
    "PROJECT",
    "VARIABLE",
    "File",
    "Settings",
    "check",
    "check_variables",
    "current_folder",
    "read",
    "read_files",
    "state_folder",
    "user_file",
]

PROJECT: Final = "wbengine.toml"
#: Variable with the path of the only file to read, like --config.
VARIABLE: Final = "WBENGINE_CONFIG"
_PYPROJECT: Final = "pyproject.toml"
_TABLE: Final = ("tool", "wbengine")

#: Origins of values that come from neither a file nor a variable.
FLAG: Final = "flag"
DEFAULT: Final = "default"

#: Variables that apply to all commands, and the one of a single command that resembles one of them.
_KNOWN_VARIABLES: Final = frozenset((
    "WBENGINE_SERVE_RETENTION",
    VARIABLE,
    *VARIABLES.values(),
    *(f"{VARIABLES[setting]}_FILE" for setting in SECRETS),
))  # fmt: skip

#: Variables that correspond to another spelling of an option -> the variable of the setting.
_SIMILAR_VARIABLES: Final = {
    f"WBENGINE_{spelling[2:].replace('-', '_').upper()}": VARIABLES[name]
    for name, setting in SETTINGS.items()
    for spelling in setting.spellings
    if spelling.startswith("--")
}

#: Settings that affect only the output of a command.
_OUTPUT_SETTINGS: Final = ("json", "color", "quiet", "traceback")

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True)
class File:
    """A file of settings."""

    path: Path
    content: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective settings of a command. `settings_schema` describes each of them."""

    url: str | None
    exchange: str
    transport: str | None
    transport_options: Mapping[str, Any]
    ledger: str | None
    keys: str | None
    persistence: str | None
    payloads: str | None
    board: str | None
    include: tuple[str, ...]
    flows: tuple[str, ...]
    timeout: float
    json: bool
    color: str
    quiet: bool
    log_level: str
    log_format: str
    traceback: bool
    schedules: Mapping[str, Mapping[str, Any]]
    retention: Mapping[str, Any]
    notify: Mapping[str, Any]
    databases: Mapping[str, str]
    oidc: Mapping[str, Any]
    #: Setting -> origin of its value: 'flag', a variable as '$NAME', a path, or 'default'.
    origins: Mapping[str, str]
    #: The files that were read, in order of precedence.
    files: tuple[File, ...]

    @property
    def store(self) -> str:
        """URL of the store of flows. The default is a folder of this user."""
        return self.persistence or _default_store()

    @property
    def broker(self) -> str | None:
        """URL of the broker, by default the database of the flows. None: it has no URL."""
        store = self.persistence or ""
        return default_broker.choose(self.url, self.transport, self.transport_options, store)[0]

    def source(self, name: str) -> str:
        """Return the name of the setting that contains the value of a setting."""
        return "persistence" if name == "url" and self.url != self.broker else name

    def origin(self, name: str) -> str:
        """Return the origin of a value for messages: `--url`, `$WBENGINE_URL`, `x.toml: url`."""
        name = self.source(name)
        origin = self.origins.get(name, DEFAULT)
        if origin == FLAG:
            return SETTINGS[name].spellings[-1]
        return origin if origin.startswith("$") or origin == DEFAULT else f"{origin}: {name}"

    def failing(
        self, name: str, *kinds: type[BaseException], action: str = ""
    ) -> contextlib.AbstractContextManager[None]:
        """Convert errors of these kinds into a `Failed` that reports the setting as invalid."""
        origin = self.origins.get(self.source(name))
        code = errors.USAGE if origin == FLAG else errors.BAD_CONFIG
        where = f"{self.origin(name)}: {action}" if action else self.origin(name)
        return errors.failing(code, *kinds, where=where)

    def environment(self) -> dict[str, str]:
        """Return the values of options as environment variables for a child process."""
        variables: dict[str, str] = {}
        for name, origin in self.origins.items():
            if origin == FLAG and name not in _OUTPUT_SETTINGS:
                value = getattr(self, name)
                if isinstance(value, Mapping):
                    value = json.dumps(value)
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                variables[VARIABLES[name]] = text
        return variables


def _default_store() -> str:
    return f"dir://{state_folder() / 'flows'}"


def state_folder() -> Path:
    """Return the folder for state of this user: flows and logs.

    A user who has no home to write to, as in containers, gets a private temporary folder.

    :raises TransportFailure: if other users can access that folder.
    """
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state or os.path.expanduser("~/.local/state"), "wbengine")
    if state or _can_create(folder):
        return folder
    import tempfile

    path = os.path.join(tempfile.gettempdir(), f"wbengine-{os.getuid()}-state")
    make_folder = object_names.load("wbengine.transports._folder.files:make_folder")
    return Path(make_folder(path, private=True))


def _can_create(folder: Path) -> bool:
    """Return whether a folder exists or can be created."""
    existing = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    can_create = existing == folder or os.access(existing, os.W_OK | os.X_OK)
    return can_create and folder.is_absolute()  # Without a home, the path starts with `~`.


def user_file() -> Path:
    """Return the path of the user's file of settings, which need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    # Without a home, `home` starts with `~`, which must not name a folder in the current one.
    return Path(os.sep, home, "wbengine", "config.toml")


def read(option_values: Mapping[str, Any], files: Sequence[File]) -> Settings:
    """Return all settings.

    :param option_values: the values of command-line options, by name of the setting.
    :raises Failed: if a value in the environment is invalid.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [
        (FLAG, option_values),
        *_environment(),
        *((str(file.path), file.content) for file in files),
    ]
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
    """Return the files of settings in order of precedence.

    :param config: the only file to read, or None for the file of the project and that of the user.
    :param commands: names of commands. A key of a file with such a name is a table of options.
    :raises Failed: if a file cannot be read, or its content is invalid.
    """
    if config is not None:
        path = Path(config)
        if not path.is_file():
            words = f"--config or ${VARIABLE} must name an existing file, got {config!r}"
            raise errors.Failed(words, errors.BAD_CONFIG)
        candidates = [_load(path, _TABLE if path.name == _PYPROJECT else ())]
    else:
        candidates = [_project_file(), _load(user_file(), ())]
    files = [file for file in candidates if file is not None]
    for file in files:
        _check(file, commands)
    return files


def current_folder() -> Path:
    """Return the current folder.

    :raises Failed: if it was deleted.
    """
    folder = search_path.current_folder()
    if folder is None:
        raise errors.Failed("the current folder was deleted: change to another")
    return Path(folder)


def _project_file() -> File | None:
    """Return the file of the project, in this folder or the nearest folder above.

    It is `wbengine.toml`, or `pyproject.toml` with a table `[tool.wbengine]`.

    :raises Failed: if users other than this one and root can write the file.
    """
    here = current_folder()
    for folder in (here, *here.parents):
        file = _load(folder / PROJECT, ()) or _load(folder / _PYPROJECT, _TABLE)
        if file is not None:
            _check_writers(file.path, above=folder != here)
            return file
    return None


def _check_writers(path: Path, *, above: bool) -> None:
    """Reject a file that other users can write, because settings select code that is executed.

    A file in the current folder may be writable by its group. The user may be unaware of a file in
    a folder above: that file and its folder must not be writable by a group either.
    """
    shared = stat.S_IWGRP | stat.S_IWOTH if above else stat.S_IWOTH
    for each, status in [
        *([(path, path.lstat())] if path.is_symlink() else []),
        (path, path.stat()),
        *([(path.parent, path.parent.stat())] if above else []),
    ]:
        writers = status.st_mode & shared
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (os.geteuid(), 0):
            problem = f"{each} must belong to you or root, got {_user_name(status.st_uid)}"
            advice = ""
        elif writers and not is_sticky and not stat.S_ISLNK(status.st_mode):
            others = "other users" if writers & stat.S_IWOTH else "its group"
            problem = f"{each} is writable by {others} (mode {stat.S_IMODE(status.st_mode):04o})"
            advice = f", or run chmod {'go' if above else 'o'}-w {shlex.quote(str(each))}"
        else:
            continue
        raise errors.Failed(
            f"refused to read {path}: {problem}; if you trust the file, pass"
            f" --config {shlex.quote(str(path))} (or ${VARIABLE}){advice}",
            errors.BAD_CONFIG,
        )


def _user_name(uid: int) -> str:
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
        words = f"cannot read {path}: {errors.reason(error)}"
        raise errors.Failed(words, errors.BAD_CONFIG) from error
    if table and ".".join(table) not in text and table[-1] not in text:
        return None
    import tomllib

    try:
        content: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.Failed(f"{path} must contain TOML: {error}", errors.BAD_CONFIG) from error
    for key in table:
        content = content.get(key)
        if not isinstance(content, dict):
            return None
    return File(path, content)


def _check(file: File, commands: Collection[str]) -> None:
    known_names = [*SCHEMA["properties"], *commands]
    for name, value in file.content.items():
        if name in SCHEMA["properties"]:
            check(f"{file.path}: {name}", name, value)
        elif name not in commands:
            raise errors.Failed(
                f"{file.path}: unknown setting {name!r}{object_names.hint(name, known_names)}",
                errors.BAD_CONFIG,
            )
        elif not isinstance(value, Mapping):
            raise errors.Failed(
                f"{file.path}: {name} must be a table with options of 'wbengine {name}', got"
                f" {value!r}",
                errors.BAD_CONFIG,
            )


def check(where: str, name: str, value: Any) -> None:
    """Check the value of a setting.

    :raises Failed: if the value is invalid; the message contains `where`, the value and the
        expected form.
    """
    # Imported only here: the import is slow, and often there is nothing to check.
    import jsonschema

    kind = settings_schema.schema_of(name)
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(kind).iter_errors(value)
    )
    if error is not None and (error.absolute_path or error.validator == "additionalProperties"):
        place = ".".join((where, *(str(key) for key in error.absolute_path)))  # inside a table
        raise errors.Failed(f"{place}{_inner_error(error)}", errors.BAD_CONFIG)
    if error is not None:
        shown = "" if name in SECRETS else f", got {json.dumps(value, default=str)}"
        near = object_names.hint(value, kind.get("enum", ())) if isinstance(value, str) else ""
        raise errors.Failed(f"{where} must be {_expected(kind)}{shown}{near}", errors.BAD_CONFIG)


def _inner_error(error: Any) -> str:
    kind, value = error.schema, error.instance
    if error.validator == "enum":
        near = object_names.hint(str(value), kind["enum"])
        return f" must be {_expected(kind)}, got {value!r}{near}"
    if error.validator == "additionalProperties":
        keys = list(kind["properties"])
        name = next(each for each in value if each not in keys)
        return (
            f": unknown key {name!r}{object_names.hint(name, keys)}; known keys: {', '.join(keys)}"
        )
    return f": {error.message}"


def _expected(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return f"one of {', '.join(kind['enum'])}"
    if "pattern" in kind:
        return "1 to 120 characters of A-Z a-z 0-9 _ . -"
    return {
        "string": "a non-empty string",
        "boolean": "true or false",
        "number": "a number of seconds above 0",
        "array": "a list of strings",
        "object": "a table",
    }[kind["type"]]


def check_variables(prefix: str, known_names: Collection[str]) -> None:
    """Reject environment variables that start with `prefix` and closely resemble a known name.

    Other variables are allowed: Kubernetes sets `WBENGINE_PORT` if a service is named wbengine.

    :raises Failed: if there is such a variable; the message contains the most similar name.
    """
    ends = [name.removeprefix(prefix) for name in known_names]
    for name, value in os.environ.items():
        end = name.removeprefix(prefix)
        if value and end != name and end not in ends:
            near = object_names.near(end, ends, 1, cutoff=object_names.CLOSE_SIMILARITY)
            if near:
                raise errors.Failed(
                    f"unknown variable ${name} (did you mean ${prefix}{near[0]}?)",
                    errors.BAD_CONFIG,
                )


def _environment() -> list[tuple[str, Mapping[str, Any]]]:
    check_variables("WBENGINE_", _KNOWN_VARIABLES)
    for wrong, variable in _SIMILAR_VARIABLES.items():
        if wrong != variable and os.environ.get(wrong):
            raise errors.Failed(
                f"unknown variable ${wrong} (did you mean ${variable}?)", errors.BAD_CONFIG
            )
    layers: list[tuple[str, Mapping[str, Any]]] = []
    for name, variable in VARIABLES.items():
        text, where = _variable(variable, name in SECRETS)
        if text:
            value = _parse_value(name, text)
            if SCHEMA["properties"][name].get("type") != "string" or name == "exchange":
                check(where, name, value)
            layers.append((where, {name: value}))
    return layers


def _variable(variable: str, may_be_file: bool) -> tuple[str | None, str]:
    text = os.environ.get(variable)
    where = f"${variable}"
    path = os.environ.get(f"{variable}_FILE") if may_be_file else None
    if text or not path:
        return text, where
    try:
        return Path(path).read_text(encoding="utf-8").strip(), f"{where}_FILE"
    except (OSError, UnicodeError) as error:
        words = f"{where}_FILE: cannot read {path!r}: {errors.reason(error)}"
        raise errors.Failed(words, errors.BAD_CONFIG) from error


def _parse_value(name: str, text: str) -> Any:
    """Return a variable's text as a value of the setting's type.

    A text that cannot be converted is returned unchanged, so that `check` rejects it.
    """
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
