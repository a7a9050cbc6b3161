"""`wbengine keys`: create, show and rotate key files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from wbengine import exceptions
from wbengine._cli import base, errors, params
from wbengine._cli import context as contexts
from wbengine._security import keys

__all__ = ["command"]

command = base.Group("keys", help="Create, show and rotate the keys that sign and encrypt.")

#: Delay until a new key signs: time to copy its file to all processes.
_DEFAULT_SIGN_DELAY: Final = "10m"
#: Time for which a replaced key remains trusted: longer than results are stored (7 days).
_DEFAULT_TRUST_TIME: Final = "30d"


@command.command(
    "new",
    help="""Create key files that only you can read.

    PATH is a file with one secret that all processes share. With --per-role, PATH is a folder with
    a file for engines, one for workers and one for operators (commands and the dashboard). A key of
    one role cannot sign messages of another role. Such keys need the extra `keys`.

    \b
    Examples:
      wbengine keys new keys.json
      wbengine keys new --per-role keys/
    """,
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--per-role", is_flag=True, help="Create a key for each role instead of a shared one."
)
@click.option(
    "--encrypt", is_flag=True, help="Also encrypt arguments and results in messages and stores."
)
@click.option(
    "--accept-unsigned",
    type=params.DURATION,
    default="0",
    metavar="DURATION",
    help="Accept unsigned messages for this time, until all processes have their key file.",
)
def new(
    context: contexts.Context, path: Path, per_role: bool, encrypt: bool, accept_unsigned: float
) -> None:
    with _checked():
        contents = keys.new(per_role=per_role, encrypt=encrypt)
    for content in contents.values() if accept_unsigned else ():
        content["accept_unsigned_until"] = round(time.time() + accept_unsigned)
    with _written(path):
        if per_role:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for role, content in contents.items():
            file = path / f"{role}.json" if per_role else path
            keys.write(file, content)
            context.printer.note(f"{file}: keys of role {role!r}")


@command.command(
    "show",
    help="""Show the keys in a key file, without secrets.

    For each key, print whether it signs messages and how long it is trusted. Without PATH, the key
    file of the settings is used.

    \b
    Example:
      wbengine keys show keys.json
    """,
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
def show(context: contexts.Context, path: Path | None) -> None:
    with _checked():
        ring = keys.Keyring.load(_path(context, path))
    now = time.time()
    signs = ring.signing_key(now)
    entries: list[dict[str, Any]] = [
        {
            "id": key.id,
            "algorithm": key.algorithm,
            "role": key.role,
            "state": _state(key, signs, now),
            "since": key.since or None,
            "until": key.until,
        }
        for key in ring.keys.values()
    ]
    until = ring.accept_unsigned_until
    printer = context.printer
    role_info = {"role": ring.role, "encrypts": ring.encrypts, "accept_unsigned_until": until}
    printer.document("keys-show/1", {"keys": entries, **role_info})
    rows = [
        (*(each[name] for name in ("id", "algorithm", "role", "state")),
         _format_time(each["since"]), _format_time(each["until"]))
        for each in entries
    ]  # fmt: skip
    printer.table(("ID", "ALGORITHM", "ROLE", "STATE", "SINCE", "UNTIL"), rows)
    if signs.is_over(now):
        printer.hint(
            f"all keys of role {ring.role!r} have expired, so other processes reject messages"
            f" signed"
            " with this file; to add a key: wbengine keys rotate --in 0"
        )
    if ring.encrypts:
        printer.hint("this file also encrypts: values in messages, stores and payloads")
    elif ring.encrypts_from is not None:
        printer.hint(f"this file also encrypts from {_format_time(ring.encrypts_from)}")
    if until > now:
        printer.hint(f"unsigned messages are accepted until {_format_time(until)}")


@command.command(
    "rotate",
    help="""Add a new signing key to a key file, or to all key files of a folder.

    The new key signs after a delay (--in). Copy the files to all processes before then; running
    processes read them again. After that, the old keys remain trusted for --keep, because queues
    and ledgers may contain messages and results that they signed. Choose a time longer than the
    `result_ttl` of your engines and longer than your flows stay suspended.

    Old secrets decrypt stores until `db reencrypt` has encrypted each store with the new one. Then
    they can be removed with --remove-expired.

    \b
    Example:
      wbengine keys rotate keys.json
    """,
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--in",
    "delay",
    type=params.DURATION,
    default=_DEFAULT_SIGN_DELAY,
    metavar="DURATION",
    help="Delay before the new key signs.",
)
@click.option(
    "--keep",
    type=params.WAIT,
    default=_DEFAULT_TRUST_TIME,
    metavar="DURATION",
    help="Time for which the old keys remain trusted after the new key starts to sign.",
)
@click.option(
    "--encrypt",
    is_flag=True,
    help="Also encrypt, from the time when the new key signs, with files that only sign.",
)
@click.option("--remove-expired", is_flag=True,
    help="Remove the secrets that have expired. What they encrypted is lost.")  # fmt: skip
def rotate(
    context: contexts.Context,
    path: Path | None,
    delay: float,
    keep: float,
    encrypt: bool,
    remove_expired: bool,
) -> None:
    path = _path(context, path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    by_role: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in files:
        with _checked():
            content = keys.read(file)
        if by_role.setdefault(content["role"], (file, content))[0] != file:
            raise errors.Failed(
                f"{path} must contain one file for each role, got two of role {content['role']!r}"
            )
    contents = {role: content for role, (_, content) in by_role.items()}
    if keys.ANY in contents and len(contents) > 1:
        raise errors.Failed(
            f"{path} must contain either a shared key file or key files of roles, got both; pass"
            f" the"
            " path of one file"
        )
    if not contents or (keys.ANY not in contents and len(contents) < len(keys.ROLES)):
        missing = ", ".join(f"{role}.json" for role in keys.ROLES if role not in contents)
        raise errors.Failed(f"{path} must contain the key files of all roles, {missing} is missing")
    now = time.time()
    with _checked():
        rotated = keys.rotated(
            contents,
            now + delay,
            now + delay + keep,
            now,
            encrypt=encrypt,
            remove_expired=remove_expired,
        )
    with _written(path):
        keys.replace_all({by_role[role][0]: content for role, content in rotated.items()})
    for role in rotated:
        context.printer.note(
            f"{by_role[role][0]}: the new key of role {role!r} signs from"
            f" {_format_time(now + delay)}"
        )


def _state(key: keys.Key, signs: keys.Key, now: float) -> str:
    if key.is_over(now):
        return "expired"
    return "signs" if key is signs else "will sign" if key.since > now else "trusted"


def _format_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _path(context: contexts.Context, path: Path | None) -> Path:
    chosen = path or context.settings.keys
    if chosen is None or str(chosen) == keys.NONE:
        raise click.UsageError("a key file is required: PATH, --keys or $WBENGINE_KEYS")
    return Path(chosen)


def _checked() -> contextlib.AbstractContextManager[None]:
    return errors.failing(errors.BAD_CONFIG, exceptions.InvalidFormat)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.Failed(f"{path}: {errors.reason(error)}") from error
