"""`wbengine access`: create, list, revoke and rotate access keys."""

from __future__ import annotations

import time
from typing import Any

import click

from wbengine._cli import base, common_options, confirmation, errors, params, store_access
from wbengine._cli import context as contexts
from wbengine.dashboard import _key_management, _roles
from wbengine.dashboard._key_management import NewKey
from wbengine.persistence._access_keys import AccessKey
from wbengine.views import _formatting

__all__ = ["command"]

command = base.Group("access", help="Create, list, revoke and rotate keys of the HTTP API.")

_KEY = click.argument("key", metavar="NAME|ID")
_EXPIRES = click.option("--expires", "seconds", type=params.WAIT, metavar="DURATION",
    help="Time until the key expires, such as 12h or 90d.", show_default="never")  # fmt: skip


@command.command(
    "new",
    help="""Create a key, with which a program uses the HTTP API of the dashboard.

    The command prints the key once; the store contains only a digest of it. Programs send it in the
    header Authorization: Bearer. With tags, the key has access only to flows with all of these
    tags; with queues, only to flows that were submitted to one of them.

    \b
    Examples:
      wbengine access new ci --role operator --tag team=billing --expires 90d
      wbengine access new nightly --role operator --queue reports
      wbengine access new grafana > /etc/grafana/wbengine-key
    """,
)
@click.argument("name")
@click.option("--role", type=params.Choice(_roles.ROLES), default=_roles.VIEWER, metavar="ROLE",
    help=f"Rights of the key: {', '.join(_roles.ROLES)}.")  # fmt: skip
@common_options.tags("Tag of the flows to which the key has access (repeatable).", params.TEXT_TAG)
@click.option("--queue", "queues", multiple=True, metavar="NAME",
    help="Queue of the flows to which the key has access (repeatable).")  # fmt: skip
@_EXPIRES
def new(
    context: contexts.Context,
    name: str,
    role: str,
    tags: dict[str, str],
    queues: tuple[str, ...],
    seconds: float | None,
) -> None:
    store_access.check_outlives(context.settings)
    with (
        context.backend(upgrade=True, missing_ok=True) as backend,
        errors.failing(errors.USAGE, ValueError),
    ):
        created = _key_management.new(
            backend,
            name,
            role,
            tags=tags,
            queues=queues,
            seconds=seconds,
            by=confirmation.current_user(),
        )
    _print_new(context, "access-new/1", created)


@command.command(
    "rotate",
    help="""Create a key that replaces those with the same name, with their rights.

    The earlier keys with this name remain valid for a while (--keep), so that you can give the new
    key to all programs.

    \b
    Example:
      wbengine access rotate ci --keep 1d --expires 90d
    """,
)
@_KEY
@click.option("--keep", type=params.DURATION, default="1d", metavar="DURATION",
    help="Time for which the earlier keys remain valid.")  # fmt: skip
@_EXPIRES
def rotate(context: contexts.Context, key: str, keep: float, seconds: float | None) -> None:
    with context.backend() as backend:
        created = _key_management.rotate(
            backend, key, keep=keep, seconds=seconds, by=confirmation.current_user()
        )
    _print_new(context, "access-rotate/1", created)
    for replaced in created.replaced:
        context.printer.note(f"{replaced.name}: key {replaced.id} expires at or before"
            f" {_formatting.iso(created.key.created + keep)}")  # fmt: skip


@command.command(
    "list",
    help="""List the keys, without their secrets.

    \b
    Examples:
      wbengine access list
      wbengine access list --all --json
    """,
)
@click.option("--all", "with_ended", is_flag=True, help="List revoked and expired keys, too.")
def ls(context: contexts.Context, with_ended: bool) -> None:
    now = time.time()
    with context.backend() as backend:
        keys = _key_management.list_keys(backend)
    listed = [key for key in keys if with_ended or key.is_valid(now)]
    printer = context.printer
    has_queues = any(key.queues for key in listed)
    printer.document("access-list/1", {"keys": [_content(key, now) for key in listed]})
    rows = [
        (
            *(key.name, key.id, key.role, _tags(key)),
            *([" ".join(key.queues)] if has_queues else []),
            *(_formatting.iso(key.expires), _formatting.iso(key.used)),
            _key_management.state_of(key, now),
        )
        for key in listed
    ]
    optional = ("QUEUES",) if has_queues else ()
    columns = ("NAME", "ID", "ROLE", "TAGS", *optional, "EXPIRES", "USED", "STATE")
    empty = "There are no keys." if with_ended else "There are no valid keys."
    printer.table(columns, rows, empty=empty)


@command.command(
    "show",
    help="""Show the keys with a name or id, without their secrets.

    \b
    Example:
      wbengine access show ci
    """,
)
@_KEY
def show(context: contexts.Context, key: str) -> None:
    now = time.time()
    with context.backend() as backend:
        keys = _key_management.find(backend, key)
    printer = context.printer
    printer.document("access-show/1", {"keys": [_content(each, now) for each in keys]})
    for number, each in enumerate(keys):
        if number:
            printer.line("")
        printer.pairs(
            [
                ("Name", each.name),
                ("Id", each.id),
                ("State", _key_management.state_of(each, now)),
                ("Role", each.role),
                ("Tags", _tags(each)),
                ("Queues", " ".join(each.queues) or None),
                ("Created", f"{_formatting.iso(each.created)} by {each.creator}"),
                ("Expires", _formatting.iso(each.expires)),
                ("Used", _formatting.iso(each.used)),
                ("Revoked", _formatting.iso(each.revoked)),
            ]
        )


@command.command(
    "revoke",
    help="""Revoke all keys with a name, or the key with an id.

    Dashboards refuse them within 10 seconds, and end their event streams.

    \b
    Example:
      wbengine access revoke ci
    """,
)
@_KEY
def revoke(context: contexts.Context, key: str) -> None:
    with context.backend() as backend:
        revoked = _key_management.revoke(backend, key)
    ids = [each.id for each in revoked]
    context.printer.document("access-revoke/1", {"revoked": ids})
    for each in revoked:
        context.printer.line(f"{each.name}: revoked key {each.id}")
    if not revoked:
        context.printer.hint(f"{key}: was revoked before")


def _print_new(context: contexts.Context, schema: str, created: NewKey) -> None:
    now = created.key.created
    context.printer.secret(schema, {**_content(created.key, now), "key": created.text}, "key")
    context.printer.guide("the key is not shown again: store it where only its program can read it")


def _content(key: AccessKey, now: float) -> dict[str, Any]:
    return {**key.to_dict(), "state": _key_management.state_of(key, now)}


def _tags(key: AccessKey) -> str | None:
    return " ".join(f"{name}={value}" for name, value in key.tags.items()) or None
