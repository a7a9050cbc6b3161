"""Parts of stores by tags: no method of a connection reaches other flows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.seams import stores
from tests.views import records
from wbengine import exceptions
from wbengine.persistence import _commands, _listing, base, models
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._pauses import TaskPause
from wbengine.persistence._restricted import RestrictedBackend, RestrictedConnection
from wbengine.signals import Signal

from . import places

TAGS = {"team": "billing"}
LEASE = "somebody"


def save(
    connection: base.Connection,
    tags: Mapping[str, str],
    name: str = "flow",
    note: Mapping[str, Any] | None = None,
) -> str:
    """Store a flow with one task, and return its uuid.

    :param note: the note of its submission.
    """
    book = models.LogBook(name)
    flow = models.FlowDetail(name)
    flow.meta["tags"] = dict(tags)
    if note is not None:
        flow.meta[models.SUBMITTED] = note
    flow.add(models.TaskDetail(f"{name} task"))
    book.add(flow)
    connection.save_logbook(book)
    return flow.uuid


@pytest.fixture
def part(backend: base.Backend) -> RestrictedConnection:
    return RestrictedBackend(backend, TAGS).get_connection()


def fork_of(original: models.FlowDetail) -> base.NewFork:
    book, flow = models.LogBook("fork"), models.FlowDetail("fork")
    flow.meta = dict(original.meta)
    book.add(flow)
    return base.NewFork(book, flow, None, ())


def atom_of(connection: base.Connection, uuid: str) -> str:
    (atom,) = connection.get_atoms_for_flow(uuid)
    return atom.uuid


Call = Callable[[base.Connection, base.Connection, str], Any]


#: A call of each method that concerns a flow. It raises `NotFound` for a foreign one.
OF_A_FLOW: dict[str, Call] = {
    "get_flow_details": lambda part, all, uuid: part.get_flow_details(uuid),
    "get_changes": lambda part, all, uuid: part.get_changes(uuid),
    "position": lambda part, all, uuid: part.position(uuid),
    "get_logs": lambda part, all, uuid: part.get_logs(uuid),
    "get_outline": lambda part, all, uuid: part.get_outline(uuid),
    "get_lease": lambda part, all, uuid: part.get_lease(uuid),
    "get_row": lambda part, all, uuid: part.get_row(uuid),
    "queue_pause": lambda part, all, uuid: part.queue_pause(uuid),
    "get_atoms_for_flow": lambda part, all, uuid: list(part.get_atoms_for_flow(uuid)),
    "get_atom_details": lambda part, all, uuid: part.get_atom_details(atom_of(all, uuid)),
    "flow_of_atom": lambda part, all, uuid: part.flow_of_atom(atom_of(all, uuid)),
    "update_atom_details": lambda part, all, uuid: part.update_atom_details(
        all.get_atom_details(atom_of(all, uuid))
    ),
    "update_flow_details": lambda part, all, uuid: part.update_flow_details(
        with_tags(all.get_flow_details(uuid))
    ),
    "save_changes": lambda part, all, uuid: part.save_changes(
        with_tags(all.get_flow_details(uuid)), ()
    ),
    "save_outline": lambda part, all, uuid: part.save_outline(uuid, records.order()[1]),
    "save_fork": lambda part, all, uuid: part.save_fork(
        fork_of(all.get_flow_details(uuid)),
        with_tags(all.get_flow_details(uuid)),
        (),
        held(all, uuid),
    ),
    "acquire_lease": lambda part, all, uuid: part.acquire_lease(uuid, LEASE, 60.0),
    "renew_lease": lambda part, all, uuid: part.renew_lease(held(all, uuid), 60.0),
    "end_lease": lambda part, all, uuid: part.end_lease(held(all, uuid), None),
    "put_command": lambda part, all, uuid: part.put_command(uuid, command()),
    "send_command": lambda part, all, uuid: part.send_command(uuid, command()),
    "put_signal": lambda part, all, uuid: part.put_signal(uuid, Signal.of("s", 1, 0.0)),
    "send_signal": lambda part, all, uuid: part.send_signal(uuid, Signal.of("s", 1, 0.0)),
    "awaited_signals": lambda part, all, uuid: part.awaited_signals(uuid),
    "drop_job": lambda part, all, uuid: part.drop_job(uuid),
    "destroy_flow": lambda part, all, uuid: part.destroy_flow(uuid),
}
#: A call of each other method that reads, with the result for a store with only foreign flows.
READS: dict[str, tuple[Call, Any]] = {
    "find_flows": (lambda part, all, uuid: part.find_flows(_listing.Query()).flows, []),
    "list_flows": (lambda part, all, uuid: part.list_flows(uuid=uuid).flows, []),
    "backlog": (lambda part, all, uuid: part.backlog(), _listing.Backlog()),
    "count_children": (lambda part, all, uuid: part.count_children(uuid), {}),
    "dependents": (lambda part, all, uuid: part.dependents([]), {}),
    "count_flows": (lambda part, all, uuid: part.count_flows(), 0),
    "oldest_flow": (lambda part, all, uuid: part.oldest_flow(), None),
    "ended_flows": (lambda part, all, uuid: part.ended_flows({"SUCCESS": 1e12}, 9), []),
    "marks": (lambda part, all, uuid: part.marks([uuid]), {}),
    "flow_records": (lambda part, all, uuid: part.flow_records([uuid]), {}),
    "commands": (lambda part, all, uuid: part.commands([uuid]), {}),
    "signals": (lambda part, all, uuid: part.signals([uuid]), {}),
    "flows_waiting_for_code": (lambda part, all, uuid: part.flows_waiting_for_code(), {}),
    "duty_note": (lambda part, all, uuid: part.duty_note("retention"), {}),
}
#: A call of each method that is refused.
REFUSED: dict[str, Call] = {
    "flows_by_code": lambda part, all, uuid: part.flows_by_code(),
    "get_logbook": lambda part, all, uuid: part.get_logbook(uuid),
    "get_logbooks": lambda part, all, uuid: part.get_logbooks(),
    "get_flows_for_book": lambda part, all, uuid: part.get_flows_for_book(uuid),
    "save_logbook": lambda part, all, uuid: part.save_logbook(models.LogBook("b")),
    "destroy_logbook": lambda part, all, uuid: part.destroy_logbook(uuid),
    "bulks": lambda part, all, uuid: part.bulks,
    "clear_all": lambda part, all, uuid: part.clear_all(),
    "put_pause": lambda part, all, uuid: part.put_pause(TaskPause("shop.charge")),
    "remove_pause": lambda part, all, uuid: part.remove_pause("shop.charge"),
    "access_keys": lambda part, all, uuid: part.access_keys(),
    "access_key": lambda part, all, uuid: part.access_key("k"),
    "add_access_key": lambda part, all, uuid: part.add_access_key(
        AccessKey("k", "d", "n", "admin", {}, 0.0)
    ),
    "end_access_key": lambda part, all, uuid: part.end_access_key("k", 0.0, revoke=True),
    "note_use_of_access_key": lambda part, all, uuid: part.note_use_of_access_key("k", 0.0),
}
#: Methods that concern no flow, do nothing by default, or are tested below.
OTHERS = {
    "backend", "close", "now", "upgrade", "validate", "pauses", "codes", "add_codes",
    "report_code", "withdraw_code", "assign_code", "claim_duty", "end_duty", "delete_expired_keys",
    "release_lease", "destroy_flows", "excludes_writers",
}  # fmt: skip


def with_tags(flow: models.FlowDetail) -> models.FlowDetail:
    """Return the flow as a visitor would write it who claims that it is an own one."""
    flow.meta["tags"] = dict(TAGS)
    flow.meta[models.SUBMITTED] = {"queue": "reports"}
    return flow


def held(connection: base.Connection, uuid: str) -> stores.Lease:
    return connection.acquire_lease(uuid, LEASE, 60.0)


def command() -> _commands.FlowCommand:
    return _commands.FlowCommand(_commands.SUSPEND)


def test_every_method_of_a_connection_is_tested() -> None:
    """A new method must not reach other flows."""
    names = {name for name, _ in inspect.getmembers(base.Connection) if not name.startswith("_")}
    assert names == {*OF_A_FLOW, *READS, *REFUSED, *OTHERS}


@pytest.mark.parametrize("method", OF_A_FLOW)
def test_foreign_flow_is_missing(
    method: str, connection: base.Connection, part: RestrictedConnection
) -> None:
    own, foreign = save(connection, TAGS), save(connection, {"team": "sales"})
    before = connection.get_flow_details(foreign).to_dict()
    with pytest.raises(exceptions.NotFound) as caught:
        OF_A_FLOW[method](part, connection, foreign)
    after = connection.get_flow_details(foreign).to_dict()
    assert {**after, "epoch": 0} == {**before, "epoch": 0}
    assert connection.commands([foreign]) == {} and connection.signals([foreign]) == {}
    texts = ("Unknown flow", "Unknown task or step")
    assert str(caught.value).startswith(texts), "the text is that of a missing one"
    OF_A_FLOW[method](part, connection, own)


@pytest.mark.parametrize("method", READS)
def test_foreign_flow_is_not_counted(
    method: str, connection: base.Connection, part: RestrictedConnection
) -> None:
    foreign = save(connection, {"team": "sales"})
    connection.put_command(foreign, command())
    connection.put_signal(foreign, Signal.of("s", 1, 0.0))
    call, expected = READS[method]
    assert call(part, connection, foreign) == expected


@pytest.mark.parametrize("method", REFUSED)
def test_access_to_the_whole_store_is_refused(
    method: str, connection: base.Connection, part: RestrictedConnection
) -> None:
    uuid = save(connection, TAGS)
    with pytest.raises(exceptions.DisallowedAccess, match="all flows"):
        REFUSED[method](part, connection, uuid)


def test_foreign_flows_are_not_deleted_together(
    connection: base.Connection, part: RestrictedConnection
) -> None:
    foreign, own = save(connection, {}), save(connection, TAGS)
    flows = {
        base.EndedFlow(uuid, "PENDING", connection.list_flows(uuid=uuid).flows[0].book_uuid):
            base.Removable()
        for uuid in (foreign, own)
    }  # fmt: skip
    assert part.destroy_flows(flows) == [own]
    assert connection.get_flow_details(foreign)


def test_foreign_lease_is_not_released(
    connection: base.Connection, part: RestrictedConnection
) -> None:
    foreign = save(connection, {})
    lease = held(connection, foreign)
    part.release_lease(lease)
    assert connection.get_lease(foreign) is not None


def test_own_flow_cannot_be_written_with_other_tags(
    connection: base.Connection, part: RestrictedConnection
) -> None:
    flow = connection.get_flow_details(save(connection, TAGS))
    flow.meta["tags"] = {"team": "sales"}
    with pytest.raises(exceptions.DisallowedAccess):
        part.save_changes(flow, ())
    assert connection.get_flow_details(flow.uuid).tags == TAGS


@places.everywhere
@pytest.mark.parametrize("tags", [{}, TAGS], ids=str)
def test_part_has_the_flows_of_its_queues(
    connection: base.Connection, backend: base.Backend, tags: dict[str, str]
) -> None:
    other_tags = save(connection, {"team": "sales"}, note={"queue": "reports"})
    notes: list[dict[str, Any] | None] = [None, {}, {"queue": "Reports"}, {"queue": "reports2"}]
    foreign = [save(connection, TAGS, note=note) for note in notes]
    own = [save(connection, TAGS, note={"queue": name}) for name in ("reports", "mails")]
    own += [] if tags else [other_tags]
    part = RestrictedBackend(backend, tags, ["reports", "mails"]).get_connection()
    assert {row.uuid for row in part.list_flows().flows} == set(own)
    assert part.list_flows(queue="default").flows == []
    assert [row.uuid for row in part.list_flows(queue="mails").flows] == [own[1]]
    assert part.count_flows() == len(own)
    for uuid in foreign:
        with pytest.raises(exceptions.NotFound):
            part.get_flow_details(uuid)
    assert part.marks([*foreign, *own]).keys() == set(own)
    taken = connection.get_flow_details(foreign[0])
    taken.meta[models.SUBMITTED] = {"queue": "reports"}
    with pytest.raises(exceptions.NotFound):
        part.save_changes(taken, ())
    moved = connection.get_flow_details(own[0])
    moved.meta[models.SUBMITTED] = {"queue": "default"}
    with pytest.raises(exceptions.DisallowedAccess):
        part.save_changes(moved, ())


@pytest.mark.parametrize("method", OF_A_FLOW)
def test_flow_of_another_queue_is_missing(
    method: str, connection: base.Connection, backend: base.Backend
) -> None:
    part = RestrictedBackend(backend, {}, ["reports"]).get_connection()
    own, foreign = (save(connection, TAGS, note={"queue": name}) for name in ("reports", "mails"))
    with pytest.raises(exceptions.NotFound):
        OF_A_FLOW[method](part, connection, foreign)
    OF_A_FLOW[method](part, connection, own)


@places.everywhere
@pytest.mark.parametrize(
    "tags",
    [
        {}, {"team": "Billing"}, {"team": "BILLING"}, {"team": "billing2"}, {"team": "billin"},
        {"Team": "billing"}, {"team.": "billing"}, {"team": "bílling"}, {"team": "billing\u0307"},
        {"team": "\uff42illing"}, {"shop": "billing"},
    ],
    ids=str,
)  # fmt: skip
def test_similar_tags_are_other_tags(
    connection: base.Connection, part: RestrictedConnection, tags: dict[str, str]
) -> None:
    foreign, own = save(connection, tags), save(connection, {**TAGS, "shop": "paris"})
    assert [row.uuid for row in part.list_flows().flows] == [own]
    assert part.list_flows(tags=tags or {"team": "sales"}).flows == []
    with pytest.raises(exceptions.NotFound):
        part.get_flow_details(foreign)


@places.everywhere
@pytest.mark.parametrize("newest_first", [True, False])
def test_cursor_contains_no_number_of_the_store(
    connection: base.Connection, part: RestrictedConnection, newest_first: bool
) -> None:
    own = []
    for _ in range(3):
        save(connection, {})
        own.append(save(connection, TAGS))
    ordered = own[::-1] if newest_first else own
    found, after = list[str](), None
    while True:
        page = part.list_flows(limit=1, after=after, newest_first=newest_first)
        found += [row.uuid for row in page.flows]
        after = page.after
        if after is None:
            break
        assert _listing.Position.parse(after).tie == found[-1]
    assert found == ordered
    after = str(_listing.Position(0.0, ordered[0]))
    assert [row.uuid for row in part.list_flows(after=after, newest_first=newest_first).flows] == (
        ordered[1:]
    ), "the uuid decides"
    with pytest.raises(ValueError, match="after must be a position"):
        part.list_flows(after=str(connection.position(own[1])))


@places.everywhere
@pytest.mark.parametrize("newest_first", [True, False])
def test_cursor_of_a_deleted_or_foreign_flow_counts_by_its_time(
    connection: base.Connection, part: RestrictedConnection, newest_first: bool
) -> None:
    first, foreign, last = save(connection, TAGS), save(connection, {}), save(connection, TAGS)
    middle = connection.position(foreign).created
    expected = [first] if newest_first else [last]
    for uuid in (foreign, "unknown"):
        after = str(_listing.Position(middle, uuid))
        page = part.list_flows(after=after, newest_first=newest_first)
        assert [row.uuid for row in page.flows] == expected
    later = str(_listing.Position(9e12 if newest_first else 0.0, foreign))
    page = part.list_flows(after=later, newest_first=newest_first)
    assert [row.uuid for row in page.flows] == ([last, first] if newest_first else [first, last])


@places.everywhere
def test_tag_of_run_does_not_move_flow_to_part(
    part: RestrictedConnection, connection: base.Connection
) -> None:
    """A task must not make its flow visible to other visitors."""
    uuid = save(connection, {"amount": "5"})
    flow = connection.get_flow_details(uuid)
    flow.meta["run_tags"] = dict(TAGS)
    lease = connection.acquire_lease(uuid, LEASE, 60.0)
    connection.save_changes(flow, (), lease=lease)
    connection.release_lease(lease)
    assert [row.uuid for row in connection.list_flows(tags=TAGS).flows] == [uuid]
    assert not part.list_flows().flows and not part.list_flows(tags=TAGS).flows
    with pytest.raises(exceptions.NotFound):
        part.get_flow_details(uuid)
    own = save(connection, {**TAGS, "amount": "7"})
    assert [row.uuid for row in part.list_flows(tags=["amount=7"]).flows] == [own]
    assert not part.list_flows(tags=["team=other"]).flows
