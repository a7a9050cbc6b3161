"""Change limits of tasks and flows while work runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Annotated

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._limits import account_stores, limit_changes, usage
from wbengine._limits.limit_changes import LimitChange
from wbengine.operations import _operation as op

__all__ = ["LimitName", "change_limit", "reset_limit"]

LimitName = Annotated[
    str,
    op.Parameter(
        "The name of the limit, such as call_shop, or of one of its keys, such as call_shop[eve].",
        {"type": "string", "minLength": 1, "maxLength": limit_changes.MAX_NAME_CHARACTERS},
        shown=op.Shown(is_argument=True, metavar="NAME"),
    ),
]


def change_limit(scope: op.Scope, change: LimitChange) -> tuple[LimitChange, str | None]:
    """Store a change of a limit. Return it with the values of an earlier change, and a warning.

    :raises ValueError: if the name or a value is invalid.
    """
    change.check()
    with _store(scope) as store:
        store.change(dataclasses.replace(change, by=scope.by, at=time.time()))
        stored = store.changes([change.name])[change.name]
        used = [each.name for each in usage.listed(store) if each.flow_count]
    if change.name in limit_changes.names_of(used):
        return stored, None
    hint = object_names.hint(change.name, limit_changes.names_of(used))
    return stored, f"no running flow uses limit {change.name!r}{hint}"


def reset_limit(scope: op.Scope, name: str) -> None:
    """Remove the change of a limit, so that the values of the code apply.

    :raises NotFound: if there is none; the text suggests a name.
    """
    with _store(scope) as store:
        if not store.remove_change(name):
            raise exceptions.NotFound(
                f"Limit {name!r} has not been changed{object_names.hint(name, store.changes())}"
            )


@contextlib.contextmanager
def _store(scope: op.Scope) -> Iterator[account_stores.Store]:
    store = account_stores.store_of(scope.backend if scope.limits is None else scope.limits)
    try:
        yield store
    finally:
        if scope.limits is not None:
            store.close()
