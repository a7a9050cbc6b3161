"""Deletion of ended flows by age and number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine._configuration import named_options
from wbengine._text import durations
from wbengine.persistence import base

__all__ = ["Deleted", "Retention", "delete_ended"]

#: Settings with the state of flows that they keep for a time.
_STATES: Final = {
    "success": states.SUCCESS,
    "failure": states.FAILURE,
    "reverted": states.REVERTED,
}


class Retention(NamedTuple):
    """How long flows are kept after their end.

    :ivar seconds: by state; flows in other states are kept.
    :ivar max_flows: number of flows in the store from which the oldest ended ones are deleted.
    """

    seconds: Mapping[str, float]
    max_flows: int | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> Retention:
        """Return the retention of the settings `success`, `failure`, `reverted` and `max_flows`.

        :raises ValueError: if a setting is unknown or invalid.
        """
        named_options.check_known("retention", settings, (*_STATES, "max_flows"))
        seconds = {
            state: _seconds(name, settings[name])
            for name, state in _STATES.items()
            if name in settings
        }
        if "max_flows" not in settings:
            return cls(seconds)
        return cls(seconds, named_options.whole("max_flows", settings["max_flows"], 1))


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    seconds = durations.seconds(f"{value:f}" if is_number else str(value))
    if not seconds:
        raise ValueError(f"{name} must be a duration above 0 such as '7d', got {value!r:.80}")
    return seconds


class Deleted(NamedTuple):
    """The result of `delete_ended`.

    :ivar until: end of the latest of these flows in Unix seconds.
    """

    flows: int = 0
    until: float = 0.0


def delete_ended(
    connection: base.Connection, before: Mapping[str, float], limit: int, since: float = 0.0
) -> Deleted:
    """Delete ended flows in one transaction, the earliest end first.

    Flows with a command and flows that an engine runs are kept.

    :param before: Unix seconds by state, before which a flow was last written.
    :param since: `Deleted.until` of the previous call; flows that ended earlier are not read. So
        flows that are kept for their parents and forks are read once, not in each transaction.
    """
    flows = connection.ended_flows(before, limit, since)
    if not flows:
        return Deleted()
    only = {flow: base.Removable((flow.state,), before[flow.state]) for flow in flows}
    return Deleted(len(connection.destroy_flows(only)), flows[-1].ended)
