"""Assignment of flows to another version of their code."""

from __future__ import annotations

import contextlib

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.persistence import base

__all__ = ["assign"]


def assign(
    backend: base.Backend,
    from_code: str,
    to_code: str,
    *,
    app: str | None = None,
    dry_run: bool = False,
) -> dict[str, int]:
    """Assign all flows of a version of the code to another one, and make their jobs due.

    Flows that have ended, or that an engine runs, are left out. The next replay of a workflow shows
    whether it agrees with the other code; otherwise the flow is blocked.

    :param app: the application; default: all.
    :param dry_run: only count the flows.
    :returns: number of flows by application.
    :raises NotFound: if an application has flows of `from_code` and no version `to_code`, or
        `from_code` is unknown.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        numbers = connection.flows_by_code()
        codes = [code for code in connection.codes() if code.app and app in (None, code.app)]
        known = {code.text for code in codes}
        versions = [code.version for code in codes]
        apps = [code.app for code in codes if code.version == from_code]
        if not apps:
            raise exceptions.NotFound(
                f"Unknown code version {from_code!r}{object_names.hint(from_code, versions)}"
            )
        flows = {each: numbers.get(f"{each}:{from_code}", 0) for each in apps}
        for each, number in flows.items():
            if number and f"{each}:{to_code}" not in known:
                raise exceptions.NotFound(
                    f"Application {each!r} has no code version {to_code!r}"
                    f"{object_names.hint(to_code, versions)}"
                )
        if dry_run:
            return flows
        return {
            each: connection.assign_code(f"{each}:{from_code}", f"{each}:{to_code}")
            for each in flows
        }
