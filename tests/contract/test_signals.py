"""Signals are kept with their flow, of each name the first, in every store."""

from __future__ import annotations

import threading

import pytest

from tests.contract.kept_flows import make
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base, models
from wbengine.signals import LONGEST_NAME, MOST_BYTES, Signal
from wbengine.types.outline import Outline, OutlineNode

Connection = base.Connection
FIRST = Signal.of("approved Ä", {"by": "Zoë 🦊", "limits": (1, 2)}, 1.5)
OUTLINE = Outline(
    (
        OutlineNode("f", "flow", None),
        OutlineNode("w", "task", 0, "wbengine.task.WaitFor", None, "approved"),
        OutlineNode("t", "task", 0, "shop.Order", "join any"),
    ),
    ((1, 2),),
)


@pytest.fixture
def flow(connection: Connection) -> models.FlowDetail:
    book, made = make(models.TaskDetail("t"))
    book.add(models.FlowDetail("other", "other"))
    connection.save_logbook(book)
    return made


def test_first_signal_of_a_name_counts(connection: Connection, flow: models.FlowDetail) -> None:
    """Whoever runs the flow; the same one may be given twice, as after a lost connection."""
    assert connection.signals([flow.uuid]) == {}
    connection.take_lease(flow.uuid, "me", 60)
    assert connection.put_signal(flow.uuid, FIRST)
    assert connection.put_signal(flow.uuid, FIRST)
    assert not connection.put_signal(flow.uuid, FIRST._replace(at=2.5))
    assert not connection.put_signal(flow.uuid, FIRST._replace(text="2"))
    (kept,) = connection.signals([flow.uuid])[flow.uuid]
    assert kept == FIRST and kept.value == {"by": "Zoë 🦊", "limits": (1, 2)}


def test_signals_of_several_flows_are_one_read(
    connection: Connection, flow: models.FlowDetail
) -> None:
    early, late = Signal.of("z", 1, 1.0), Signal.of("Z", None, 3.0)
    for signal in (late, FIRST, early):
        assert connection.put_signal(flow.uuid, signal)
    assert connection.put_signal("other", early)
    asked = [flow.uuid, "gone", "other", flow.uuid]
    assert connection.signals(asked) == {flow.uuid: [early, FIRST, late], "other": [early]}
    assert connection.signals(["gone"]) == connection.signals([]) == {}


def test_signals_go_with_their_flow(connection: Connection, flow: models.FlowDetail) -> None:
    connection.put_signal(flow.uuid, FIRST)
    connection.destroy_flow(flow.uuid)
    assert connection.signals([flow.uuid]) == {}
    for give in (connection.put_signal, connection.send_signal):
        with pytest.raises(exceptions.NotFound):
            give(flow.uuid, FIRST)
    book, _ = make()
    book.add(models.FlowDetail("again", flow.uuid))
    connection.save_logbook(book)
    assert connection.signals([flow.uuid]) == {}


def test_one_of_many_who_give_it_at_once_is_first(
    backend: base.Backend, flow: models.FlowDetail
) -> None:
    gate, given = threading.Barrier(6), []

    def give(number: int) -> None:
        with backend.get_connection() as own:
            gate.wait(60)
            if own.put_signal(flow.uuid, Signal.of("s", number, float(number))):
                given.append(number)

    threads = [threading.Thread(target=give, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with backend.get_connection() as connection:
        (kept,) = connection.signals([flow.uuid])[flow.uuid]
    assert [kept.value] == given


def test_who_sends_a_signal_is_told_what_is_wrong(
    connection: Connection, flow: models.FlowDetail
) -> None:
    approved = Signal.of("approved", True, 1.0)
    connection.send_signal("other", Signal.of("whatever", None, 1.0))  # nobody knows what it has
    connection.save_outline(flow.uuid, OUTLINE)
    assert connection.get_outline(flow.uuid) == OUTLINE
    with pytest.raises(exceptions.NotFound, match=r"a signal 'aproved' \(did you mean 'approved'"):
        connection.send_signal(flow.uuid, Signal.of("aproved", True, 1.0))
    connection.send_signal(flow.uuid, approved)
    with pytest.raises(exceptions.Duplicate, match="was given signal 'approved' before"):
        connection.send_signal(flow.uuid, approved._replace(at=2.0))
    flow.state = states.SUCCESS
    connection.save_changes(flow, ())
    with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS: signal 'approved'"):
        connection.send_signal(flow.uuid, approved)


def test_exported_and_moved_with_the_flow(
    backend: base.Backend, connection: Connection, flow: models.FlowDetail
) -> None:
    connection.put_signal(flow.uuid, FIRST)
    connection.save_outline(flow.uuid, OUTLINE)
    document = operations.export(backend, flow.uuid)
    with backends.backend("memory://") as other:
        operations.import_flow(other, document)
        with other.get_connection() as there:
            assert there.signals([flow.uuid]) == {flow.uuid: [FIRST]}
        assert operations.export(other, flow.uuid)["signals"] == document["signals"]
    with backends.backend("memory://") as other:
        assert len(list(operations.move(backend, other))) == 1
        with other.get_connection() as there:
            assert there.signals([flow.uuid, "other"]) == {flow.uuid: [FIRST]}


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("", 1, ValueError, "1 to 255 printable characters, not ''"),
        ("a\nb", 1, ValueError, "printable"),
        ("x" * (LONGEST_NAME + 1), 1, ValueError, "1 to 255"),
        (7, 1, TypeError, "is a text, not 7"),
        ("s", object(), exceptions.NotEncodable, "signal 's': object"),
        ("s", "x" * MOST_BYTES, exceptions.NotEncodable, "has more than 65,536 bytes"),
    ],
)
def test_what_can_be_no_signal(name: str, value: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Signal.of(name, value, 1.0)
