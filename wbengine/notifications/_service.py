"""The sending of notifications in `wbengine serve`."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import Counter
from typing import Final

from wbengine._concurrency.crash_points import crashpoint
from wbengine._security import masking
from wbengine.backoff import Backoff
from wbengine.notifications import _message
from wbengine.notifications._collecting import Collector
from wbengine.notifications._event import KINDS, TEST, Event, event_id
from wbengine.notifications._message import Message
from wbengine.notifications._progress import Progress, duty_name
from wbengine.notifications._reading import SOURCES, EventReader
from wbengine.notifications._sender import SendError
from wbengine.notifications._settings import Destination
from wbengine.persistence import _sealed_fields, base
from wbengine.schedules._store import Schedules

__all__ = ["DestinationService", "send_test"]

LOG: Final = logging.getLogger(__name__)

_SENT: Final = "sent"
_FAILED: Final = "failed"
_DROPPED: Final = "dropped"
_NOT_SELECTED: Final = "not_selected"


class DestinationService:
    """Sends the events of a store to a destination. One of the services of a store works at a time.

    A message is stored in the note of the work before it is sent, and deleted afterwards. If this
    process dies in between, the next one sends the same message again.

    :param owner: name of this process in the store; unique, also within a process.
    """

    #: Interval at which the service with the claim reads new events.
    PERIOD_SECONDS: Final = 5.0
    #: Interval at which other services try to continue its work.
    STANDBY_SECONDS: Final = 30.0
    #: Time after which another service continues the work of one that died.
    CLAIM_SECONDS: Final = 60.0
    #: Interval at which the progress is stored if there are no events.
    STORE_SECONDS: Final = 60.0
    #: Time after which a message that cannot be sent is dropped.
    GIVE_UP_SECONDS: Final = 86400.0
    BACKOFF: Final = Backoff(delay=5.0, multiplier=2.0, max_delay=300.0)
    MAX_EXAMPLES: Final = 5
    #: Maximum number of events in a message, without and with all events.
    MAX_EVENTS: Final = 20_000
    MAX_EVENTS_OF_HOOK: Final = 500

    def __init__(
        self,
        persistence: base.Backend,
        destination: Destination,
        reader: EventReader,
        schedules: Schedules | None,
        owner: str,
    ) -> None:
        self._persistence = persistence
        self._destination = destination
        self._owner = f"{owner}:{uuid.uuid4().hex[:8]}"
        self._duty = duty_name(destination.name)
        #: Number of messages of this process by result: sent, failed (each attempt) or dropped.
        self.messages = Counter(dict.fromkeys((_SENT, _FAILED, _DROPPED), 0))
        #: Number of events by kind and result: sent, dropped or not_selected.
        self.events = Counter(
            {(kind, result): 0 for kind in KINDS for result in (_SENT, _DROPPED, _NOT_SELECTED)}
        )
        self._collector = Collector(
            reader,
            schedules,
            destination.selection,
            dashboard_url=destination.dashboard_url,
            shows_errors=destination.shows_errors,
            quiet_seconds=destination.interval,
        )

    @property
    def name(self) -> str:
        return self._destination.name

    def run_due(self) -> float:
        """Do the next step, if no other process does the work. Return the seconds until the next.

        :raises StorageFailure: if the store fails.
        :raises NotTrusted: if the stored message is encrypted, and this process lacks its key.
        """
        with contextlib.closing(self._persistence.get_connection()) as connection:
            if not connection.claim_duty(self._duty, self._owner, self.CLAIM_SECONDS):
                return self.STANDBY_SECONDS
            now = connection.now()
            note = connection.duty_note(self._duty)
            place = _sealed_fields.place_of_note(self._duty)
            progress = Progress.from_note(_sealed_fields.opened_parts(note, *place))
            if progress is None:  # Events before the first start are not sent.
                self._store(connection, Progress(now, dict.fromkeys(SOURCES, now)), now)
                return 0.0
            if progress.outbox is None:
                return self._collect(connection, progress, now)
            if now < progress.retry_at:
                return min(self.PERIOD_SECONDS, progress.retry_at - now)
            return self._send(connection, progress, progress.outbox, now)

    def release(self) -> None:
        """End the claim, so that another process continues at once."""
        with contextlib.closing(self._persistence.get_connection()) as connection:
            if connection.claim_duty(self._duty, self._owner, self.CLAIM_SECONDS):
                note = connection.duty_note(self._duty)
                connection.end_duty(self._duty, self._owner, 0, note)

    def _store(self, connection: base.Connection, progress: Progress, now: float) -> None:
        progress.stored_at = now
        place = _sealed_fields.place_of_note(self._duty)
        note = _sealed_fields.sealed_parts(progress.to_note(), ["outbox"], *place)
        connection.end_duty(self._duty, self._owner, 0, note)

    def _collect(self, connection: base.Connection, progress: Progress, now: float) -> float:
        if now < progress.next_at:
            return min(self.PERIOD_SECONDS, progress.next_at - now)
        takes_all = self._destination.sender.takes_all
        limit = self.MAX_EVENTS_OF_HOOK if takes_all else self.MAX_EVENTS
        before = progress.backlog, progress.overdue
        events = self._collector.collect(progress, now, limit)
        if not events:
            is_changed = before != (progress.backlog, progress.overdue)
            if is_changed or now >= progress.stored_at + self.STORE_SECONDS:
                self._store_collected(connection, progress, now)
            return self.PERIOD_SECONDS
        wait = min(event.at for event in events) + self._destination.group_wait - now
        if wait > 0:  # They are collected again, with later ones.
            return min(self.PERIOD_SECONDS, wait)
        groups = _message.group_events(events, None if takes_all else self.MAX_EXAMPLES)
        groups = tuple(
            _message.Group(
                group.kind,
                group.name,
                group.count,
                tuple(self._collector.detailed(event, connection) for event in group.events),
            )
            for group in groups
        )
        dashboard = self._destination.dashboard_url
        progress.outbox = Message(str(uuid.uuid4()), now, groups, dashboard)
        crashpoint("notify.before-outbox")
        self._store_collected(connection, progress, now)
        return 0.0

    def _store_collected(self, connection: base.Connection, progress: Progress, now: float) -> None:
        """Store the progress. Until then, the same events are collected again."""
        self._store(connection, progress, now)
        for kind, count in self._collector.not_selected.items():
            self.events[kind, _NOT_SELECTED] += count

    def _count(self, message: Message, result: str) -> None:
        self.messages[result] += 1
        for group in message.groups:
            self.events[group.kind, result] += group.count

    def _send(
        self, connection: base.Connection, progress: Progress, message: Message, now: float
    ) -> float:
        try:
            crashpoint("notify.before-send")
            self._destination.sender.send(message)
            crashpoint("notify.after-send")
        except Exception as error:
            self._note_failure(progress, message, error, now)
        else:
            if progress.failures:
                LOG.info("notifications to %s are sent again", self.name)
            self._count(message, _SENT)
            self._end_message(progress, now)
            progress.sent_at = now
        self._store(connection, progress, now)
        return 0.0

    def _note_failure(
        self, progress: Progress, message: Message, error: Exception, now: float
    ) -> None:
        text = _text_of(error)
        self.messages[_FAILED] += 1
        if not progress.failures:
            progress.failing_since = now
            LOG.warning("cannot send notifications to %s (%s): %s", self.name, self._place(), text)
        progress.failures += 1
        progress.retry_at = now + self.BACKOFF.seconds(min(progress.failures, 30))
        if now >= (progress.failing_since or now) + self.GIVE_UP_SECONDS:
            LOG.error("notification %s to %s was dropped: %s", message.id, self.name, text)
            self._count(message, _DROPPED)
            self._end_message(progress, now)
        progress.error = text

    def _end_message(self, progress: Progress, now: float) -> None:
        progress.outbox = progress.error = progress.failing_since = None
        progress.failures, progress.retry_at = 0, 0.0
        progress.next_at = now + self._destination.interval

    def _place(self) -> str:
        try:
            return self._destination.sender.place
        except ValueError as error:
            return str(error)


def send_test(destination: Destination) -> str | None:
    """Send a test message. Return None, or why it was not sent."""
    now = time.time()
    message_id = str(uuid.uuid4())
    event = Event(
        id=event_id(TEST, message_id),
        kind=TEST,
        at=now,
        name="test",
        reason=f"wbengine notify test, to {destination.name}",
        url=destination.dashboard_url,
    )
    groups = _message.group_events([event], None)
    try:
        destination.sender.send(Message(message_id, now, groups, destination.dashboard_url))
    except Exception as error:
        return _text_of(error)
    return None


def _text_of(error: Exception) -> str:
    """Return an error without secrets: texts of other errors than these could contain a URL."""
    if isinstance(error, SendError | ValueError | ImportError):
        return masking.masked(str(error))
    return type(error).__name__
