"""`wbengine keys`: make key files, look at them, and give them other keys."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import click

from wbengine import exceptions, keys
from wbengine.cli import base, errors, params
from wbengine.cli import context as contexts

__all__ = ["command"]

command = base.Group("keys", help="Look after the keys that messages are signed with.")

#: Seconds until a new key signs: by then its file is wherever it is trusted.
_SOON: Final = 600.0
#: Seconds for which a key is trusted that signs no more: longer than results are kept (7 days).
_KEPT: Final = 30 * 24 * 3600.0


@command.command(
    "new",
    short_help="Make key files.",
    help="""Make key files that only you can read.

    PATH is a file with one secret that all processes share; with --per-role, a folder with a file
    for engines, one for workers and one for operators (of commands and the dashboard), of which
    none can speak for another (these need cryptography: pip install 'wbengine[keys]').

    \b
    wbengine keys new keys.json
    wbengine keys new --per-role keys/
    """,
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--per-role", is_flag=True, help="A key for each role, instead of one that all have.")
@click.option("--encrypt", is_flag=True, help="Encrypt arguments and results on the wire, too.")
@click.option(
    "--accept-unsigned",
    type=params.DURATION,
    default="0",
    help="Believe messages without a signature for so long: until all have their file.",
)
def new(
    context: contexts.Context, path: Path, per_role: bool, encrypt: bool, accept_unsigned: float
) -> None:
    with _checked():
        made = keys.new(per_role=per_role, encrypt=encrypt)
    for content in made.values() if accept_unsigned else ():
        content["accept_unsigned_until"] = round(time.time() + accept_unsigned)
    with _written(path):
        if per_role:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for role, content in made.items():
            file = path / f"{role}.json" if per_role else path
            keys.write(file, content)
            context.printer.note(f"{file}: keys of role {role!r}")


@command.command(
    "show",
    short_help="Show which keys sign and which are trusted, without secrets.",
    help="""Show the keys in a file: which signs now, and until when others are trusted.

    PATH is a key file; without one, that of the settings.  Secrets are not shown.

    \b
    wbengine keys show keys.json
    """,
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
def show(context: contexts.Context, path: Path | None) -> None:
    with _checked():
        ring = keys.Keyring.load(_path(context, path))
    now = time.time()
    signs = ring.signing_key(now)
    found: list[dict[str, Any]] = [
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
    more = {"role": ring.role, "encrypts": ring.encrypts, "accept_unsigned_until": until}
    printer.document("keys-show/1", {"keys": found, **more})
    rows = [
        (*(each[name] for name in ("id", "algorithm", "role", "state")),
         _moment(each["since"]), _moment(each["until"]))
        for each in found
    ]  # fmt: skip
    printer.table(("ID", "ALGORITHM", "ROLE", "STATE", "SINCE", "UNTIL"), rows)
    if signs.is_over(now):
        printer.hint(
            f"no key of role {ring.role!r} is valid any more, so nobody believes who has this file:"
            " give it another one with `wbengine keys rotate --in 0`"
        )
    if until > now:
        printer.hint(f"messages without a signature are believed until {_moment(until)}")


@command.command(
    "rotate",
    short_help="Sign with new keys, and trust the old ones for some time.",
    help="""Give a key file, or all those of a folder, a new key to sign with.

    It signs after a while (--in), in which the files are to be copied to all processes; those that
    run read them again.  The keys before it are trusted for some time more (--keep): what they
    signed may wait in a queue, or in a ledger for a flow that goes on later.  Make that longer than
    the result_ttl of your engines, and than a flow of yours may stay suspended.

    \b
    wbengine keys rotate keys.json
    """,
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--in", "delay", type=params.DURATION, default=str(_SOON), help="Sign with it after this time."
)
@click.option(
    "--keep", type=params.WAIT, default=str(_KEPT), help="Trust the old keys for so long after."
)
def rotate(context: contexts.Context, path: Path | None, delay: float, keep: float) -> None:
    path = _path(context, path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    by_role: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in files:
        with _checked():
            content = keys.read(file)
        if by_role.setdefault(content["role"], (file, content))[0] != file:
            raise errors.Failed(f"{path} holds two files of role {content['role']!r}")
    contents = {role: content for role, (_, content) in by_role.items()}
    if keys.ANY in contents and len(contents) > 1:
        raise errors.Failed(f"{path}: a shared key file is rotated by itself: name the file")
    if not contents or (keys.ANY not in contents and len(contents) < len(keys.ROLES)):
        missing = ", ".join(f"{role}.json" for role in keys.ROLES if role not in contents)
        raise errors.Failed(f"{path}: keys are rotated for all roles at once: {missing} is missing")
    now = time.time()
    with _checked():
        rotated = keys.rotated(contents, now + delay, now + delay + keep, now)
    with _written(path):
        keys.replace_all({by_role[role][0]: content for role, content in rotated.items()})
    for role in rotated:
        context.printer.note(
            f"{by_role[role][0]}: a new key of role {role!r} signs from {_moment(now + delay)}"
        )


def _state(key: keys.Key, signs: keys.Key, now: float) -> str:
    if key.is_over(now):
        return "over"
    return "signs" if key is signs else "will sign" if key.since > now else "trusted"


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def _path(context: contexts.Context, path: Path | None) -> Path:
    told = path or context.settings.keys
    if told is None or str(told) == keys.NONE:
        raise click.UsageError("no key file is named: give PATH, --keys, or $WBENGINE_KEYS")
    return Path(told)


def _checked() -> contextlib.AbstractContextManager[None]:
    return errors.failing(errors.BAD_CONFIG, exceptions.InvalidFormat)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.Failed(f"{path}: {errors.reason(error)}") from error
