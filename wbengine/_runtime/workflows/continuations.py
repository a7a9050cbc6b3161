"""New attempts of workflows that continue as new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Continuation"]


class Continuation(NamedTuple):
    """The end of an attempt that `steps.continue_as_new` ended, in place of its result.

    :ivar inputs: arguments of the next attempt that differ from those of this one.
    :ivar signals: as `SignalNumbers.to_dict`.
    """

    inputs: Mapping[str, Any]
    signals: Mapping[str, Any]
