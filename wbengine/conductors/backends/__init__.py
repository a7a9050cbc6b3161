"""The kinds of conductors, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine import _plugins
from wbengine.conductors import base
from wbengine.jobs import base as jobs

__all__ = ["CONDUCTOR_NAMESPACE", "fetch"]

#: Entry points of other kinds of conductors.
CONDUCTOR_NAMESPACE: Final = "wbengine.conductors"

#: Kinds that are always there; others come by entry point.
KINDS: Final[Mapping[str, str]] = {
    "blocking": "wbengine.conductors.backends.impl_blocking:BlockingConductor",
    "nonblocking": "wbengine.conductors.backends.impl_nonblocking:NonBlockingConductor",
    "executor": "wbengine.conductors.backends.impl_executor:ExecutorConductor",
}


def fetch(
    kind: str,
    name: str,
    jobboard: jobs.JobBoard,
    namespace: str = CONDUCTOR_NAMESPACE,
    **options: Any,
) -> base.Conductor:
    """Make a conductor of a kind; `options` are arguments of its class.

    :raises NotFound: an unknown kind; the text names those there are.
    :raises ValueError: an option is wrong.
    :raises TypeError: `jobboard` is no board, or an option is of a wrong type.
    """
    factory = _plugins.load("conductor", kind, KINDS, namespace, CONDUCTOR_NAMESPACE)
    made: base.Conductor = factory(name, jobboard, **options)
    return made
