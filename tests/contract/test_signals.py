"""Signals in all stores."""

from __future__ import annotations

import threading

import pytest

from tests.contract.stored_flows import make
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base, models
from wbengine.signals import MAX_VALUE_BYTES, Signal
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
    book, flow_detail = make(models.TaskDetail("t"))
    book.add(models.FlowDetail("other", "other"))
    connection.save_logbook(book)
    return flow_detail


def test_first_signal_of_each_name_is_stored(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """Repeating the same signal is accepted, as after a lost connection."""
    assert connection.signals([flow.uuid]) == {}
    connection.acquire_lease(flow.uuid, "me", 60)
    assert connection.put_signal(flow.uuid, FIRST)
    assert connection.put_signal(flow.uuid, FIRST)
    assert not connection.put_signal(flow.uuid, FIRST._replace(at=2.5))
    assert not connection.put_signal(flow.uuid, FIRST._replace(text="2"))
    (signal,) = connection.signals([flow.uuid])[flow.uuid]
    assert signal == FIRST and signal.value == {"by": "Zoë 🦊", "limits": (1, 2)}


def test_signals_of_several_flows_are_read_in_one_call(
    connection: Connection, flow: models.FlowDetail
) -> None:
    early, late = Signal.of("z", 1, 1.0), Signal.of("Z", None, 3.0)
    for signal in (late, FIRST, early):
        assert connection.put_signal(flow.uuid, signal)
    assert connection.put_signal("other", early)
    asked = [flow.uuid, "gone", "other", flow.uuid]
    assert connection.signals(asked) == {flow.uuid: [early, FIRST, late], "other": [early]}
    assert connection.signals(["gone"]) == connection.signals([]) == {}


def test_signals_are_deleted_with_their_flow(
    connection: Connection, flow: models.FlowDetail
) -> None:
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


def test_one_of_concurrent_signals_is_stored(
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
        (signal,) = connection.signals([flow.uuid])[flow.uuid]
    assert [signal.value] == given


def test_invalid_signal_is_rejected_with_hint(
    connection: Connection, flow: models.FlowDetail
) -> None:
    approved = Signal.of("approved", True, 1.0)
    connection.send_signal("other", Signal.of("whatever", None, 1.0))  # it has no outline
    connection.save_outline(flow.uuid, OUTLINE)
    assert connection.get_outline(flow.uuid) == OUTLINE
    with pytest.raises(
        exceptions.NotFound, match=r"waits for signal 'aproved' \(did you mean 'approved'"
    ):
        connection.send_signal(flow.uuid, Signal.of("aproved", True, 1.0))
    connection.send_signal(flow.uuid, approved)
    with pytest.raises(exceptions.Duplicate, match="already has signal 'approved'"):
        connection.send_signal(flow.uuid, approved._replace(at=2.0))
    flow.state = states.SUCCESS
    connection.save_changes(flow, ())
    with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS: signal 'approved'"):
        connection.send_signal(flow.uuid, approved)


def test_signal_name_of_maximum_length_is_stored(
    connection: Connection, flow: models.FlowDetail
) -> None:
    longest = Signal.of("𝄞" * 255, True, 1.0)
    connection.put_signal(flow.uuid, longest)
    assert connection.signals([flow.uuid]) == {flow.uuid: [longest]}


def test_signals_are_exported_and_moved_with_their_flow(
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
    ("name", "value", "error", "message"),
    [
        ("", 1, ValueError, "1 to 255 printable characters, got ''"),
        ("a\nb", 1, ValueError, "printable"),
        ("x" * 256, 1, ValueError, "at most 255 characters, got 256"),
        (7, 1, TypeError, "must be a str, got 7"),
        ("s", object(), exceptions.NotEncodable, "signal 's': object"),
        ("s", "x" * MAX_VALUE_BYTES, exceptions.NotEncodable, "must have at most 65,536 bytes"),
    ],
)
def test_invalid_name_or_value_of_signal_is_rejected(
    name: str, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Signal.of(name, value, 1.0)
