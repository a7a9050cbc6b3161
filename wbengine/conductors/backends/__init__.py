"""Kinds of conductors, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine._configuration import plugins
from wbengine.conductors import base
from wbengine.jobs import base as jobs

__all__ = ["CONDUCTOR_NAMESPACE", "fetch"]

#: Entry point group of further kinds of conductors.
CONDUCTOR_NAMESPACE: Final = "wbengine.conductors"

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
    """Return a new conductor of a kind; `options` are arguments of its class.

    :raises NotFound: if the kind is unknown; the text lists the known kinds.
    :raises ValueError: if an option is not allowed.
    :raises TypeError: if `jobboard` is not a board, or an option has a wrong type.
    """
    factory = plugins.load("conductor", kind, KINDS, namespace, CONDUCTOR_NAMESPACE)
    conductor: base.Conductor = factory(name, jobboard, **options)
    return conductor
