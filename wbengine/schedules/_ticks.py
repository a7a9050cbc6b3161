"""Definition of schedules and the decision what to do at a given time, without I/O.

A tick is a planned start time of a schedule's flow, in whole Unix seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import uuid
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._text import durations
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.jobs import base as jobs
from wbengine.jobs._places import DEFAULT_QUEUE, check_queue
from wbengine.persistence import _listing
from wbengine.schedules import _cron_fields

__all__ = [
    "ALL",
    "ALLOW",
    "CANCEL",
    "GRACE_SECONDS",
    "ONE",
    "Pauses",
    "QUEUE",
    "SKIP",
    "Schedule",
    "Step",
    "iso",
]

#: Policies for missed ticks: fire none, the latest, or each.
SKIP: Final = "skip"
ONE: Final = "one"
ALL: Final = "all"
#: Policies for a tick while the previous flow runs: SKIP, wait, cancel the flow and wait, or fire.
QUEUE: Final = "queue"
CANCEL: Final = "cancel"
ALLOW: Final = "allow"

#: Delay after which a tick counts as missed.
GRACE_SECONDS: Final = 60.0

#: Start and end of pauses, in order. Ticks after a start, up to its end, are left out.
Pauses = Sequence[tuple[float, float]]

_CATCH_UP: Final = (SKIP, ONE, ALL)
_OVERLAP: Final = (SKIP, QUEUE, CANCEL, ALLOW)

_FIRINGS: Final = uuid.uuid5(uuid.NAMESPACE_URL, "wbengine:schedule")
#: Origin of local time. The code assumes at most one clock change within a day.
_EPOCH: Final = datetime(1970, 1, 1)
_DAY_SECONDS: Final = 86_400
#: First range in which due ticks are searched.
_FIRST_SEARCH_SECONDS: Final = 60
#: Maximum interval: ten years.
_MAX_INTERVAL_SECONDS: Final = 3650 * _DAY_SECONDS
#: Number of ticks of a cron expression from which its shortest step is estimated.
_STEP_SAMPLES: Final = 25


class Step(NamedTuple):
    """The decision about a schedule: the tick to fire, or None, and the one after it."""

    tick: int | None
    next_tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A flow, named by its factory, and the times at which it is submitted.

    :param cron: five fields as in Debian's crontab, for example '30 2 * * MON-FRI', or '@daily' and
        the like, in the time of `time_zone`.
    :param every: instead of `cron`, an interval in seconds, at most ten years. Ticks are multiples
        of it since 1970 (UTC).
    :param jitter: maximum delay in seconds, up to the shortest step between ticks. Each tick has
        its own delay, the same on all hosts.
    :param catch_up: policy for missed ticks: fire 'one' (the latest), 'all', or the latest unless
        it is more than a minute late ('skip').
    :param overlap: policy while the flow of the previous firing has not ended: leave the tick out
        ('skip'), wait ('queue'), cancel that flow and wait for its end ('cancel'), or fire
        ('allow').
    :param undo_until: as in `engines.submit`.
    :param inputs: inputs of the flow, in addition to `scheduled_at`, the tick in ISO 8601.
    :raises ValueError: if the definition is invalid; the message contains the reason.
    """

    name: str
    factory: str
    cron: str | None = None
    every: int | None = None
    time_zone: str = "UTC"
    jitter: float = 0.0
    catch_up: str = ONE
    overlap: str = SKIP
    inputs: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: str = jobs.JobPriority.NORMAL.value
    queue: str = DEFAULT_QUEUE
    undo_until: str | float | None = None

    def __post_init__(self) -> None:
        words = named_options.text("name", self.name).split()
        object_names.check_length("Schedule name", self.name)
        if self.name != " ".join(words):
            raise ValueError(f"name must have single spaces between words, got {self.name!r:.80}")
        object_names.check_length(
            "Name of a flow factory", named_options.text("factory", self.factory)
        )
        if (self.cron is None) == (self.every is None):
            raise ValueError(f"Schedule {self.name!r} must have either cron or every")
        named_options.text("time_zone", self.time_zone)
        if self.every is not None:
            object.__setattr__(self, "every", named_options.whole("every", self.every, 1))
            if self.every > _MAX_INTERVAL_SECONDS:
                raise ValueError(
                    f"every must be at most {_MAX_INTERVAL_SECONDS} seconds (ten years), got"
                    f" {self.every}"
                )
            if self.time_zone != "UTC":
                raise ValueError(
                    f"time_zone can be used only with cron, got {self.time_zone!r} with every"
                )
        object.__setattr__(self, "jitter", named_options.number("jitter", self.jitter))
        named_options.choice("catch_up", self.catch_up, _CATCH_UP)
        named_options.choice("overlap", self.overlap, _OVERLAP)
        if self.catch_up == SKIP and self.overlap in (QUEUE, CANCEL):
            raise ValueError(
                f"catch_up must be 'one' or 'all' with overlap={self.overlap!r}, got 'skip', which"
                " drops delayed firings"
            )
        if not isinstance(self.inputs, Mapping) or not all(
            isinstance(name, str) for name in self.inputs
        ):
            raise ValueError(
                f"inputs must be a dict with str keys, got {type(self.inputs).__name__}"
            )
        if "scheduled_at" in self.inputs:
            raise ValueError("inputs must not contain 'scheduled_at', which is the planned time")
        try:
            _listing.check_tags(self.tags)
            _listing.check_tags(self.tags_at(0))
            if self.undo_until is not None:
                durations.seconds_of(self.undo_until, "undo_until")
        except TypeError as error:
            raise ValueError(str(error)) from error
        jobs.JobPriority.convert(self.priority)
        check_queue(self.queue)
        self.after(0)  # Validates the time zone and the fields, and that there is a tick.
        if self.jitter and self.jitter > (shortest := self._shortest_step()):
            raise ValueError(
                f"jitter must be at most {shortest} seconds, the shortest time between two firings,"
                f" got {self.jitter:g}"
            )

    @classmethod
    def from_dict(cls, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Create a schedule from the dict of `to_dict` or from a table of a file.

        :raises ValueError: if the definition is invalid.
        """
        names = [each.name for each in fields(cls) if each.name != "name"]
        named_options.check_known(f"Schedule {name!r}", definition, names)
        return cls(name=name, **{"factory": "", **definition})

    @classmethod
    def unchecked(cls, name: str, definition: Any) -> Schedule:
        """Create a schedule for display from a definition that is invalid on this host."""
        plain: dict[str, Any] = {"factory": ""}
        if isinstance(definition, Mapping):
            plain |= {
                key: value for key, value in definition.items() if isinstance(value, str | int)
            }
        schedule = object.__new__(cls)
        for each in fields(cls):
            if each.default_factory is MISSING:
                value = plain.get(each.name, each.default)
            else:
                value = each.default_factory()
            object.__setattr__(schedule, each.name, value)
        object.__setattr__(schedule, "name", name)
        return schedule

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, without the name."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name != "name" and getattr(self, each.name) not in (each.default, {})
        }

    @property
    def times(self) -> str:
        """The times of the ticks, for display."""
        if self.every is not None:
            return f"every {self.every} s"
        return f"{self.cron} {self.time_zone}"

    def after(self, moment: float, pauses: Pauses = ()) -> int:
        """Return the first tick after `moment` that is in none of the pauses.

        :raises ValueError: if there is none, or the time zone or the fields are invalid.
        """
        tick = next(self._ticks(moment))
        for start, end in pauses:
            if start < tick <= end:
                tick = next(self._ticks(end))
        return tick

    def from_time(self, moment: float) -> Iterator[int]:
        """Yield the ticks at and after `moment`."""
        return self._ticks(math.ceil(moment) - 1)

    def _shortest_step(self) -> int:
        if self.every is not None:
            return self.every
        ticks = itertools.islice(self._ticks(0), _STEP_SAMPLES)
        return min(after - before for before, after in itertools.pairwise(ticks))

    def _ticks(self, moment: float) -> Iterator[int]:
        if self.every is not None:
            first = int(moment // self.every + 1) * self.every
            yield from itertools.count(first, self.every)
        import cronsim  # Schedules with intervals do not need this package.

        try:  # UTC needs no time zone data, which may be missing in a small image.
            utc = self.time_zone == "UTC"
            zone = UTC if utc else zoneinfo.ZoneInfo(self.time_zone)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError) as error:
            near = object_names.hint(self.time_zone, zoneinfo.available_timezones())
            raise ValueError(
                f"time_zone must be a zone such as Europe/Berlin, got {self.time_zone!r}{near}"
            ) from error
        try:
            cron = _cron_fields.expand(str(self.cron))
        except ValueError as error:
            raise ValueError(
                f"cron must be an expression such as '30 2 * * MON-FRI', got {self.cron!r}: {error}"
            ) from error
        minute, hour, *_ = cron.split()
        # The fields are valid, but possibly no month has these days.
        with contextlib.suppress(cronsim.CronSimError):
            if minute.startswith("*") or hour.startswith("*"):
                yield from _local_ticks(cron, int(moment // 1), zone)
            else:
                for local_time in cronsim.CronSim(cron, datetime.fromtimestamp(moment, zone)):
                    tick = int(local_time.timestamp())
                    # If clocks are set back, a local time may be in the past. If they are set
                    # forward, several local times are the same tick.
                    if tick > moment:
                        yield tick
                        moment = tick
        raise ValueError(f"cron must match a date, got {self.cron!r}")

    def due(self, tick: int) -> float:
        """Return the time at which a tick is fired, including jitter."""
        if not self.jitter:
            return float(tick)
        digest = hashlib.sha256(f"{self.name}\0{tick}".encode()).digest()
        return tick + self.jitter * int.from_bytes(digest[:6], "big") / 2**48

    def step(self, tick: int, now: float, *, busy: bool, pauses: Pauses = ()) -> Step | None:
        """Return the decision for the next tick, or None to wait.

        :param tick: the next tick, which is in none of the pauses.
        :param busy: whether the flow of the previous firing has not ended.
        """
        if self.due(tick) > now:
            return None
        if self.catch_up != ALL:
            tick = self._latest_due(tick, now, pauses)
        next_tick = self.after(tick, pauses)
        is_missed = self.catch_up == SKIP and now - self.due(tick) > GRACE_SECONDS
        if is_missed or (busy and self.overlap == SKIP):
            return Step(None, next_tick)
        if busy and self.overlap != ALLOW:
            return None
        return Step(tick, next_tick)

    def _latest_due(self, tick: int, now: float, pauses: Pauses) -> int:
        latest = self._latest_due_until(now, tick, now)
        for start, end in reversed(pauses):
            if start < latest <= end:
                latest = self._latest_due_until(start, tick, now)
        return latest

    def _latest_due_until(self, end: float, tick: int, now: float) -> int:
        back = _FIRST_SEARCH_SECONDS
        while True:
            start = max(tick - 1, end - back)
            latest = None
            for each in self._ticks(start):
                if each > end:
                    break
                latest = each if self.due(each) <= now else latest
            if latest is not None:
                return latest
            back *= 2

    def flow_id(self, tick: int) -> str:
        """Return the uuid of the flow of a tick."""
        return str(uuid.uuid5(_FIRINGS, f"{self.name}\0{tick}"))

    def inputs_at(self, tick: int) -> dict[str, Any]:
        """Return the inputs of the flow of a tick."""
        return {"scheduled_at": iso(tick), **self.inputs}

    def new_inputs_at(self, tick: int) -> JsonInputs:
        """Return the inputs of the flow of a tick, before they are stored for the first time.

        Only the tick is JSON, unless all inputs are.
        """
        is_json = isinstance(self.inputs, JsonInputs)
        return JsonInputs.without(self.inputs_at(tick), () if is_json else self.inputs)

    def tags_at(self, tick: int) -> dict[str, str]:
        """Return the tags of the flow of a tick."""
        return {**self.tags, "schedule": self.name, "scheduled": iso(tick)}


def iso(tick: int) -> str:
    """Return a tick as ISO 8601 text in UTC."""
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")


def _local_ticks(cron: str, start: int, zone: tzinfo) -> Iterator[int]:
    """Yield the ticks after `start`. A local time that occurs twice has two ticks."""
    import cronsim

    known_until = start  # Time for which the offset is known.
    while True:
        offset = _offset(known_until, zone)
        local = _EPOCH + timedelta(seconds=start + offset)
        for local_time in cronsim.CronSim(cron, local):
            tick = int((local_time - _EPOCH).total_seconds()) - offset
            change = _next_clock_change(known_until, tick, zone)
            if change is not None:
                start, known_until = change - 1, change
                break
            yield tick
            known_until = tick
        else:
            return


def _offset(moment: int, zone: tzinfo) -> int:
    ahead = datetime.fromtimestamp(moment, zone).utcoffset()
    assert ahead is not None
    return round(ahead.total_seconds())


def _next_clock_change(start: int, end: int, zone: tzinfo) -> int | None:
    """Return the time of the first clock change after `start` until `end`, or None."""
    offset, low = _offset(start, zone), start
    while low < end:
        high = min(low + _DAY_SECONDS, end)
        if _offset(high, zone) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high
        low = high
    return None
