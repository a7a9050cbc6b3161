"""What a schedule says, and what is to be done about it at a given time: pure, no I/O.

A tick is a moment at which a schedule means its flow to begin, in whole unix seconds.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
import zoneinfo
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final, NamedTuple

from wbengine import _options
from wbengine.jobs import base as jobs
from wbengine.persistence import listing

__all__ = ["ALL", "ALLOW", "CANCEL", "GRACE", "ONE", "QUEUE", "SKIP", "Schedule", "Step", "iso"]

#: Of ticks that were missed, none is fired; or one, for all; or each.
SKIP: Final = "skip"
ONE: Final = "one"
ALL: Final = "all"
#: A tick, while the flow before has not ended: is skipped; waits for it; cancels it, and waits;
#: does not mind.
QUEUE: Final = "queue"
CANCEL: Final = "cancel"
ALLOW: Final = "allow"

#: A tick that is so many seconds late was missed.
GRACE: Final = 60.0

_CATCH_UP: Final = (SKIP, ONE, ALL)
_OVERLAP: Final = (SKIP, QUEUE, CANCEL, ALLOW)

#: Characters of a name.
_LONGEST: Final = 200
#: The namespace of the uuids of flows that were fired.
_FIRINGS: Final = uuid.uuid5(uuid.NAMESPACE_URL, "wbengine:schedule")
#: The wall clock is counted from it; no clock is set twice within a day.
_EPOCH: Final = datetime(1970, 1, 1)
_DAY: Final = 86_400
#: So far back ticks that are due are looked for at first.
_BACK: Final = 60
#: Ten years: the longest interval.
_MOST: Final = 3650 * _DAY
#: Of so many ticks of a cron expression the shortest step is taken for that of all.
_STEPS: Final = 25


class Step(NamedTuple):
    """What is to be done about a schedule now.

    `tick` is to be fired (None: nothing is), and then `next_tick` is the next one.
    """

    tick: int | None
    next_tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A flow, by the name of what makes it, and when to submit it.

    :param cron: five fields, as in Debian's crontab: '30 2 * * MON-FRI'; the times are those
        of `time_zone`.
    :param every: instead of it, an interval: at the seconds since 1970 (UTC) that it divides; ten
        years at most.
    :param jitter: each tick has its own delay, of up to so many seconds, the same on all hosts; at
        most the interval, or the shortest step between ticks of `cron`.
    :param catch_up: of ticks that were missed none is fired ('skip': more than a minute late),
        'one' (the latest), or 'all'.
    :param overlap: while the flow of the firing before has not ended, a tick is left out ('skip'),
        waits ('queue'), cancels that flow and waits for its end ('cancel'), or is fired ('allow').
    :param inputs: of the flow, besides `scheduled_at`: the tick, in ISO 8601.
    :raises ValueError: it makes no sense; the text says why.
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

    def __post_init__(self) -> None:
        words = _options.text("name", self.name).split()
        if len(self.name) > _LONGEST or self.name != " ".join(words):
            raise ValueError(
                f"name={self.name!r:.80}: a name has up to {_LONGEST} characters, and single blanks"
                " between its words"
            )
        _options.text("factory", self.factory)
        if (self.cron is None) == (self.every is None):
            raise ValueError(f"Schedule {self.name!r} needs cron= or every=, one of them")
        _options.text("time_zone", self.time_zone)
        if self.every is not None:
            object.__setattr__(self, "every", _options.whole("every", self.every, 1))
            if self.every > _MOST:
                raise ValueError(f"every= is more than {_MOST} seconds, which are ten years")
            if self.time_zone != "UTC":
                raise ValueError(
                    f"time_zone={self.time_zone!r} is for cron=: every= counts from 1970 in UTC"
                )
        object.__setattr__(self, "jitter", _options.number("jitter", self.jitter))
        _options.choice("catch_up", self.catch_up, _CATCH_UP)
        _options.choice("overlap", self.overlap, _OVERLAP)
        if self.catch_up == SKIP and self.overlap in (QUEUE, CANCEL):
            raise ValueError(
                f"overlap={self.overlap!r} lets ticks wait, and catch_up='skip' leaves out those"
                " that waited: take catch_up='one' or 'all'"
            )
        if not isinstance(self.inputs, Mapping) or not all(
            isinstance(name, str) for name in self.inputs
        ):
            raise ValueError(f"inputs are values by name, not {type(self.inputs).__name__}")
        if "scheduled_at" in self.inputs:
            raise ValueError("Input 'scheduled_at' is the time of the tick, and cannot be given")
        try:
            listing.check_tags(self.tags)
            listing.check_tags(self.tags_at(0))
        except TypeError as error:
            raise ValueError(str(error)) from error
        jobs.JobPriority.convert(self.priority)
        self.after(0)  # the zone and the fields, and that there is a tick at all
        if self.jitter and self.jitter > (shortest := self._shortest_step()):
            raise ValueError(
                f"jitter={self.jitter:g} is more than the {shortest} seconds between two ticks,"
                " some of which would be lost"
            )

    @classmethod
    def from_dict(cls, name: str, told: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_dict`, or a table of a file, tells of.

        :raises ValueError: it makes no sense.
        """
        known = [each.name for each in fields(cls) if each.name != "name"]
        _options.check_known(f"Schedule {name!r}", told, known)
        return cls(name=name, **{"factory": "", **told})

    @classmethod
    def unchecked(cls, name: str, told: Any) -> Schedule:
        """What a description that makes no sense here says, to be shown."""
        plain: dict[str, Any] = {"factory": ""}
        if isinstance(told, Mapping):
            plain |= {key: value for key, value in told.items() if isinstance(value, str | int)}
        made = object.__new__(cls)
        for each in fields(cls):
            if each.default_factory is MISSING:
                value = plain.get(each.name, each.default)
            else:
                value = each.default_factory()
            object.__setattr__(made, each.name, value)
        object.__setattr__(made, "name", name)
        return made

    def to_dict(self) -> dict[str, Any]:
        """All that is not as it is by default, but for the name."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name != "name" and getattr(self, each.name) not in (each.default, {})
        }

    @property
    def times(self) -> str:
        """When it ticks, for people."""
        if self.every is not None:
            return f"every {self.every} s"
        return f"{self.cron} {self.time_zone}"

    # -- ticks ----------------------------------------------------------------------------------

    def after(self, moment: float) -> int:
        """The first tick that is later than `moment`.

        :raises ValueError: there is none; the zone or the fields make no sense.
        """
        return next(self._ticks(moment))

    def _shortest_step(self) -> int:
        if self.every is not None:
            return self.every
        ticks = itertools.islice(self._ticks(0), _STEPS)
        return min(after - before for before, after in itertools.pairwise(ticks))

    def _ticks(self, moment: float) -> Iterator[int]:
        if self.every is not None:
            first = int(moment // self.every + 1) * self.every
            yield from itertools.count(first, self.every)
        import cronsim  # what has intervals only does without

        try:  # UTC needs no data, which a small image may lack
            utc = self.time_zone == "UTC"
            zone = timezone.utc if utc else zoneinfo.ZoneInfo(self.time_zone)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError) as error:
            raise ValueError(
                f"time_zone={self.time_zone!r} is no zone such as Europe/Berlin"
            ) from error
        try:
            if len(str(self.cron).split()) != 5:
                raise cronsim.CronSimError("it has five fields")
            minute, hour, *_ = str(self.cron).split()
            if minute.startswith("*") or hour.startswith("*"):
                yield from self._shown_times(int(moment // 1), zone)
            else:
                for found in cronsim.CronSim(str(self.cron), datetime.fromtimestamp(moment, zone)):
                    tick = int(found.timestamp())
                    # Where clocks are set back, a local time may be over; and where they are set
                    # forward, several are one.
                    if tick > moment:
                        yield tick
                        moment = tick
        except cronsim.CronSimError as error:
            raise ValueError(
                f"cron={self.cron!r} is none such as '30 2 * * MON-FRI': {error}"
            ) from error
        raise ValueError(f"cron={self.cron!r} never comes")

    def _shown_times(self, start: int, zone: tzinfo) -> Iterator[int]:
        """The ticks after `start`, as often as the wall clock shows their times."""
        import cronsim

        known = start  # the clock is as it was then
        while True:
            offset = _offset(known, zone)
            local = _EPOCH + timedelta(seconds=start + offset)
            for found in cronsim.CronSim(str(self.cron), local):
                tick = int((found - _EPOCH).total_seconds()) - offset
                change = _change(known, tick, zone)
                if change is not None:
                    start, known = change - 1, change
                    break
                yield tick
                known = tick
            else:
                return

    def due(self, tick: int) -> float:
        """When a tick is to be fired."""
        if not self.jitter:
            return float(tick)
        digest = hashlib.sha256(f"{self.name}\0{tick}".encode()).digest()
        return tick + self.jitter * int.from_bytes(digest[:6], "big") / 2**48

    def step(self, tick: int, now: float, *, busy: bool) -> Step | None:
        """What to do now, where `tick` is the next one; None: wait.

        `busy`: the flow of the firing before has not ended.
        """
        if self.due(tick) > now:
            return None
        if self.catch_up != ALL:
            tick = self._latest_due(tick, now)
        then = self.after(tick)
        is_missed = self.catch_up == SKIP and now - self.due(tick) > GRACE
        if is_missed or (busy and self.overlap == SKIP):
            return Step(None, then)
        if busy and self.overlap != ALLOW:
            return None
        return Step(tick, then)

    def _latest_due(self, tick: int, now: float) -> int:
        """The latest of the ticks that are due, the first of which is `tick`."""
        back = _BACK
        while True:
            start = max(tick - 1, now - back)
            latest = None
            for each in self._ticks(start):
                if each > now:
                    break
                latest = each if self.due(each) <= now else latest
            if latest is not None:
                return latest
            back *= 2

    # -- what is submitted ----------------------------------------------------------------------

    def flow_id(self, tick: int) -> str:
        """The uuid of the flow of a tick."""
        return str(uuid.uuid5(_FIRINGS, f"{self.name}\0{tick}"))

    def inputs_at(self, tick: int) -> dict[str, Any]:
        """The inputs of the flow of a tick."""
        return {"scheduled_at": iso(tick), **self.inputs}

    def tags_at(self, tick: int) -> dict[str, str]:
        """What the flow of a tick is found by."""
        return {**self.tags, "schedule": self.name, "scheduled": iso(tick)}


def iso(tick: int) -> str:
    """A tick in UTC, as people write it."""
    return datetime.fromtimestamp(tick, timezone.utc).isoformat().replace("+00:00", "Z")


def _offset(moment: int, zone: tzinfo) -> int:
    """How far a clock is ahead of UTC, in seconds."""
    ahead = datetime.fromtimestamp(moment, zone).utcoffset()
    assert ahead is not None
    return round(ahead.total_seconds())


def _change(start: int, end: int, zone: tzinfo) -> int | None:
    """When the clock is set after `start`, first, until `end`; None: it is not."""
    offset, low = _offset(start, zone), start
    while low < end:
        high = min(low + _DAY, end)
        if _offset(high, zone) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high
        low = high
    return None
