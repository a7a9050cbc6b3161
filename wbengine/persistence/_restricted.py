"""A part of a store: flows with some tags or queues, for visitors that may not see others."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NoReturn

from wbengine import exceptions
from wbengine.persistence import _leases, _listing, base, models
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._bulk_records import BulkStore
from wbengine.persistence._codes import Code
from wbengine.persistence._commands import FlowCommand
from wbengine.persistence._pauses import QueuePause, TaskPause
from wbengine.signals import Signal
from wbengine.types import _tags, codec
from wbengine.types._outline import Outline

__all__ = ["RestrictedBackend", "RestrictedConnection", "key_of", "submission"]

#: Maximum number of flows that a statement of a database selects.
_MAX_LIMIT: Final = 2**62


class RestrictedBackend(base.Backend):
    """The flows of another backend that have all of some tags, and one of some queues.

    For its connections, other flows do not exist: errors are those of missing flows, and lists,
    counts and cursors do not depend on other flows. Closing it does not close the other backend.

    :param queues: names of queues; empty: flows of all queues, and those that were not submitted.
    """

    def __init__(
        self, whole: base.Backend, tags: Mapping[str, str], queues: Collection[str] = ()
    ) -> None:
        super().__init__(whole.conf)
        self.encodes = whole.encodes
        self.payloads_location = whole.payloads_location
        self.whole: Final = whole
        self.tags: Final = _listing.check_tags(tags)
        self.queues: Final = tuple(sorted(queues))

    def get_connection(self) -> RestrictedConnection:
        return RestrictedConnection(self, self.whole.get_connection())

    def restrict(self, query: _listing.Query) -> _listing.Query | None:
        """Return a query of the other backend that selects only flows with the tags and queues.

        Return None if no flow can match.
        """
        for condition in query.tags:
            other = self.tags.get(condition.key, condition.text) != condition.text
            if other and condition.operator == "=":
                return None
        # Not those of the run: a task must not move its flow to another part.
        conditions = _tags.conditions_of(self.tags, given=True)
        queues = query.queues
        if self.queues:
            asked = self.queues if queues is None else queues
            queues = tuple(queue for queue in self.queues if queue in asked)
            if not queues:
                return None
        return dataclasses.replace(query, tags=(*conditions, *query.tags), queues=queues)

    def includes(self, tags: Mapping[str, _tags.Value], queue: str | None) -> bool:
        """Return whether a flow with these tags and the queue of its submission is in this part."""
        return (not self.queues or queue in self.queues) and _tags.has_texts(tags, self.tags)

    def check_identity(self) -> None:
        self.whole.check_identity()

    def close(self) -> None:
        """Do nothing."""


def submission(
    backend: base.Backend, tags: Mapping[str, _tags.Value] | None, queue: str | None
) -> tuple[base.Backend, Mapping[str, _tags.Value] | None, str | None]:
    """Return the backend, the tags and the queue of a submission.

    For a restricted backend, the new flow has its tags, and one of its queues: the only one if
    none is given.

    :raises ValueError: if a tag has another value than that of the restriction, or the queue is
        not one of it.
    """
    if not isinstance(backend, RestrictedBackend):
        return backend, tags, queue
    for key, value in (tags or {}).items():
        if backend.tags.get(key, value) != value:
            raise ValueError(f"tag {key} must be {backend.tags[key]!r}, got {value!r:.80}")
    if queue is None and len(backend.queues) == 1:
        queue = backend.queues[0]
    if backend.queues and (queue or _listing.UNRECORDED_QUEUE) not in backend.queues:
        got = "none" if queue is None else f"{queue!r:.80}"
        raise ValueError(f"queue must be one of {', '.join(backend.queues)}, got {got}")
    return backend.whole, {**(tags or {}), **backend.tags}, queue


def key_of(backend: base.Backend, key: str | None) -> str | None:
    """Return the stored form of a key of a submission.

    Keys are separate for each restriction: a key that is used elsewhere neither returns or changes
    a foreign flow nor confirms that it exists.
    """
    if key is None or not isinstance(backend, RestrictedBackend):
        return key
    parts = [sorted(backend.tags.items()), key, *([backend.queues] if backend.queues else [])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class RestrictedConnection(base.Connection):
    """A connection to a `RestrictedBackend`.

    Methods that are not listed here use the others. Those for the whole store are refused.
    """

    def __init__(self, backend: RestrictedBackend, whole: base.Connection) -> None:
        self._backend = backend
        self._whole = whole

    @property
    def backend(self) -> RestrictedBackend:
        return self._backend

    @property
    def excludes_writers(self) -> bool:
        return self._whole.excludes_writers

    def close(self) -> None:
        self._whole.close()

    def now(self) -> float:
        return self._whole.now()

    # -- one flow ----------------------------------------------------------------------------------

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        return self._checked(fd_uuid).get_flow_details(fd_uuid, lazy)

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        return self._checked(flow_uuid).get_changes(flow_uuid, since)

    def position(self, flow_uuid: str) -> _listing.Position:
        return self._checked(flow_uuid).position(flow_uuid)

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        return self._checked(flow_uuid).get_logs(flow_uuid, atom_uuid, limit)

    def get_outline(self, flow_uuid: str) -> Outline | None:
        return self._checked(flow_uuid).get_outline(flow_uuid)

    def get_lease(self, flow_uuid: str) -> _leases.Lease | None:
        return self._checked(flow_uuid).get_lease(flow_uuid)

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        self.flow_of_atom(ad_uuid)
        return self._whole.get_atom_details(ad_uuid)

    def flow_of_atom(self, ad_uuid: str) -> str:
        with contextlib.suppress(exceptions.NotFound):
            uuid = self._whole.flow_of_atom(ad_uuid)
            if self._has(uuid):
                return uuid
        raise exceptions.NotFound(f"Unknown task or step {ad_uuid!r:.80}")

    def put_command(self, flow_uuid: str, command: FlowCommand) -> FlowCommand | None:
        return self._checked(flow_uuid).put_command(flow_uuid, command)

    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        return self._checked(flow_uuid).put_signal(flow_uuid, signal)

    def drop_job(self, flow_uuid: str) -> None:
        self._checked(flow_uuid).drop_job(flow_uuid)

    def destroy_flow(self, flow_uuid: str, only: base.Removable | None = None) -> None:
        self._checked(flow_uuid).destroy_flow(flow_uuid, only)

    def destroy_logbook(self, book_uuid: str, *, unused_only: bool = False) -> None:
        if not unused_only:
            _refuse()
        self._whole.destroy_logbook(book_uuid, unused_only=True)

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: _leases.Lease | None = None,
        settled: FlowCommand | None = None,
        dropped: Collection[str] = (),
    ) -> None:
        if flow_row and not self._includes(flow):
            _refuse()
        self._checked(flow.uuid).save_changes(
            flow, atoms, flow_row=flow_row, items=items, logs=logs, lease=lease, settled=settled,
            dropped=dropped,
        )  # fmt: skip

    def save_fork(
        self,
        fork: base.NewFork,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        lease: _leases.Lease,
    ) -> None:
        whole = self._checked(flow.uuid)
        if not self._includes(fork.flow):
            _refuse()
        whole.save_fork(fork, flow, atoms, lease)

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: _leases.Lease | None = None
    ) -> None:
        self._checked(flow_uuid).save_outline(flow_uuid, outline, lease=lease)

    def acquire_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> _leases.Lease:
        return self._checked(flow_uuid).acquire_lease(flow_uuid, owner, seconds, dead=dead)

    def renew_lease(self, lease: _leases.Lease, seconds: float) -> None:
        self._checked(lease.flow).renew_lease(lease, seconds)

    def release_lease(self, lease: _leases.Lease) -> None:
        if self._has(lease.flow):  # otherwise it was lost
            self._whole.release_lease(lease)

    def end_lease(
        self, lease: _leases.Lease, handled: FlowCommand | None, *, keep: bool = False
    ) -> FlowCommand | None:
        return self._checked(lease.flow).end_lease(lease, handled, keep=keep)

    def queue_pause(self, flow_uuid: str) -> QueuePause | None:
        return self._checked(flow_uuid).queue_pause(flow_uuid)

    # -- several flows -----------------------------------------------------------------------------

    def find_flows(self, query: _listing.Query) -> base.Page:
        """Return a page of flows.

        The position after it contains the uuid of its last flow, not its number in the store, from
        which the number of other flows could be computed.
        """
        restricted = self._backend.restrict(query)
        if restricted is None:
            return base.Page([], None)
        if query.limit > _MAX_LIMIT:
            restricted = dataclasses.replace(restricted, limit=_MAX_LIMIT)
        if query.after is not None:
            place = self._place(query.after, query.newest_first)
            restricted = dataclasses.replace(restricted, after=place)
        page = self._whole.find_flows(restricted)
        after = None
        if page.after is not None:
            created = _listing.Position.parse(page.after).created
            after = str(_listing.Position(created, page.flows[-1].uuid))
        # Databases may compare texts by other rules.
        rows = [row for row in page.flows if self._backend.includes(row.tags, row.queue)]
        return base.Page(rows, after)

    def _place(self, after: _listing.Position, newest_first: bool) -> _listing.Position:
        if not isinstance(after.tie, str):
            raise ValueError(f"after must be a position from an earlier page, got {after}")
        try:
            return self.position(after.tie)
        except exceptions.NotFound:  # It was deleted: skip other flows of the same moment.
            return _listing.Position(after.created, 0 if newest_first else 2**63 - 1)

    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        return self._whole.marks(self._own(flow_uuids))

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, FlowCommand]:
        return self._whole.commands(self._own(flow_uuids))

    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        return self._whole.signals(self._own(flow_uuids))

    # -- the whole store ---------------------------------------------------------------------------

    def pauses(self) -> Sequence[TaskPause]:
        """Return all pauses, by which views find those of the tasks of a flow."""
        return self._whole.pauses()

    def codes(self) -> Sequence[Code]:
        """Return all versions of code, by which views find that of a flow."""
        return self._whole.codes()

    @property
    def bulks(self) -> BulkStore:
        _refuse()

    def flows_by_code(self) -> Mapping[str, int]:
        _refuse()

    def flows_waiting_for_code(self) -> Mapping[str, int]:
        return {}

    def assign_code(self, old: str, new: str) -> int:
        _refuse()

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        _refuse()

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        _refuse()

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        _refuse()

    def clear_all(self) -> None:
        _refuse()

    def put_pause(self, pause: TaskPause) -> None:
        _refuse()

    def remove_pause(self, pattern: str, *, ended: bool = False) -> bool:
        _refuse()

    def add_access_key(self, key: AccessKey) -> None:
        _refuse()

    def end_access_key(self, key_id: str, at: float, *, revoke: bool) -> bool:
        _refuse()

    def note_use_of_access_key(self, key_id: str, at: float) -> None:
        _refuse()

    def access_keys(self) -> Sequence[AccessKey]:
        _refuse()

    def access_key(self, key_id: str) -> AccessKey | None:
        _refuse()

    # -- checks ------------------------------------------------------------------------------------

    def _checked(self, flow_uuid: str) -> base.Connection:
        """Return the connection to the whole store.

        :raises NotFound: if the flow is missing there, or is not in this part: with one text.
        """
        if not self._has(flow_uuid):
            raise exceptions.NotFound(f"Unknown flow {flow_uuid!r:.80}")
        return self._whole

    def _has(self, flow_uuid: str) -> bool:
        try:
            with codec.unknown_classes_as_text():
                flow = self._whole.get_flow_details(flow_uuid, lazy=True)
        except (exceptions.NotFound, exceptions.CorruptRecord):  # Tags may be damaged, too.
            return False
        return self._includes(flow)

    def _includes(self, flow: models.FlowDetail) -> bool:
        queue = _listing.queue_of(flow.meta_value(models.SUBMITTED))
        return self._backend.includes(flow.given_tags, queue)

    def _own(self, flow_uuids: Collection[str]) -> list[str]:
        return [uuid for uuid in flow_uuids if self._has(uuid)]


def _refuse() -> NoReturn:
    raise exceptions.DisallowedAccess("This needs access to all flows of the store")
