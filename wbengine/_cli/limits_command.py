"""`wbengine limits`: list limits with the flows that use them, and change them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine._cli import base, errors
from wbengine._cli import context as contexts
from wbengine._cli.operation_command import Call, create
from wbengine._limits import account_stores, usage
from wbengine._limits.limit_changes import LimitChange
from wbengine.operations import _operation
from wbengine.persistence import backends
from wbengine.views import _formatting

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence

__all__ = ["command"]

_REDIS: Final = click.option("--redis", metavar="URL",
    help="Use the limits in this Redis (option `limits` of engines) instead of the"
    " store.")  # fmt: skip

command = base.Group(
    "limits", help="List the limits of tasks and flows, and change them.", default="list"
)


class _Change(Call):
    """A change of a limit in the store or in a Redis."""

    extra_options = (_REDIS,)

    @classmethod
    @contextlib.contextmanager
    def open_store(
        cls,
        context: contexts.Context,
        operation: _operation.Operation,
        options: Mapping[str, Any],
    ) -> Iterator[persistence.Backend]:
        if options["redis"] is None:
            with super().open_store(context, operation, options) as backend:
                yield backend
        else:
            with backends.backend("memory://") as backend:  # It is not used.
                yield backend

    def scope(self) -> _operation.Scope:
        return _operation.Scope(self.backend, self.by, limits=self.options["redis"])


command.add_command(create("limits set", _Change))
command.add_command(create("limits unset", _Change))


@command.command(
    "list",
    help="""List the limits that are in use or changed.

    For each limit of tasks and flows, print its maximum, the number of permits held, the number of
    permits that flows wait for, also parked ones, and the time until the next permit of a rate.
    USED is the number of units in the last period, if tasks have costs. CHANGED is the time of the
    latest change by `wbengine limits set`, with the user. If only parked flows use a limit, its
    maximum is unknown (?). With --redis, parked flows are not counted.

    \b
    Examples:
      wbengine limits list
      wbengine limits list --redis redis://limits.example/0 --json
    """,
)
@_REDIS
def ls(context: contexts.Context, redis: str | None) -> None:
    if redis is None:
        with context.backend() as backend:
            limits = usage.listed(account_stores.store_of(backend))
    else:
        with errors.failing(errors.USAGE, ValueError, ImportError):
            store = account_stores.store_of(account_stores.check_url(redis))
        with contextlib.closing(store):
            limits = usage.listed(store)
    printer = context.printer
    printer.document("limits/1", {"limits": [limit.to_dict() for limit in limits]})
    rows = [
        (
            limit.name,
            limit.quota.rate or ("?" if limit.is_unknown else None),
            limit.quota.concurrency or ("?" if limit.is_unknown else None),
            limit.held,
            None if limit.used is None else f"{limit.used:,.0f}",
            limit.waiting,
            limit.flow_count,
            None if limit.next_permit is None else _formatting.seconds(limit.next_permit),
            _change_text(limit.changes),
        )
        for limit in limits
    ]
    columns = (
        "LIMIT",
        "RATE",
        "CONCURRENCY",
        "HELD",
        "USED",
        "WAITING",
        "FLOWS",
        "NEXT",
        "CHANGED",
    )
    printer.table(columns, rows, empty="No limits are in use.", right=columns[2:8])


def _change_text(changes: tuple[LimitChange, ...]) -> str | None:
    if not changes:
        return None
    change = max(changes, key=lambda each: each.at)
    sender = f" by {change.by}" if change.by else ""
    return f"{_formatting.iso(change.at)}{sender}"
