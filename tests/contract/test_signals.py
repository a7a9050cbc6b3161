"""Signals in all stores."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.contract.stored_flows import make
from tests.support.threads import call_in_threads
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base, models
from wbengine.signals import MAX_VALUE_BYTES, Signal
from wbengine.types._outline import ANY_SIGNAL, Outline, OutlineNode

from . import places

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
#: The outline of a flow with a workflow.
ANY_OUTLINE = Outline(
    (*OUTLINE.nodes, OutlineNode("a", "task", 0, "shop.Watch", None, ANY_SIGNAL)), OUTLINE.edges
)


@pytest.fixture
def flow(connection: Connection) -> models.FlowDetail:
    book, flow_detail = make(models.TaskDetail("t"))
    book.add(models.FlowDetail("other", "other"))
    connection.save_logbook(book)
    return flow_detail


@places.everywhere
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


@places.dialects
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


def test_signals_of_one_name_are_stored_by_number(
    connection: Connection, flow: models.FlowDetail
) -> None:
    numbered = [FIRST.numbered(number)._replace(at=float(number)) for number in (1, 2, 10, 11)]
    for signal in (*numbered, *numbered):
        assert connection.put_signal(flow.uuid, signal)
    assert not connection.put_signal(flow.uuid, numbered[1]._replace(text="2"))
    assert connection.signals([flow.uuid]) == {flow.uuid: numbered}


def test_workflow_receives_several_signals_of_any_name(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """Also if name, value and time are equal."""
    connection.save_outline(flow.uuid, ANY_OUTLINE)
    sent = [
        connection.send_signal(flow.uuid, Signal.of(name, (1, 2), 5.0))
        for name in ("tick", "approved", "tick", "tick")
    ]
    assert [(signal.name, signal.number) for signal in sent] == [
        ("tick", 1), ("approved", 1), ("tick", 2), ("tick", 3),
    ]  # fmt: skip
    stored = connection.signals([flow.uuid])[flow.uuid]
    assert sorted(stored) == sorted(sent)
    assert {(signal.value, signal.at) for signal in stored} == {((1, 2), 5.0)}
    flow.state = states.SUCCESS
    connection.save_changes(flow, ())
    with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS: signal 'tick'"):
        connection.send_signal(flow.uuid, Signal.of("tick", 1, 6.0))


@places.dialects
def test_concurrent_signals_to_workflow_get_different_numbers(
    backend: base.Backend, flow: models.FlowDetail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All senders read the stored signals before any of them writes the same value and time."""
    sender_count = 3
    have_read = threading.Barrier(sender_count)
    with backend.get_connection() as connection:
        connection.save_outline(flow.uuid, ANY_OUTLINE)
        read = type(connection).signals

    def read_together(
        self: Connection, flow_uuids: Collection[str]
    ) -> Mapping[str, Sequence[Signal]]:
        signals = read(self, flow_uuids)
        have_read.wait(60)
        return signals

    def send(_: int) -> Signal:
        with backend.get_connection() as own:
            return own.send_signal(flow.uuid, Signal.of("tick", None, 1.0))

    with monkeypatch.context() as patched:
        patched.setattr(type(connection), "signals", read_together)
        sent = call_in_threads(send, range(sender_count))
    with backend.get_connection() as connection:
        stored = connection.signals([flow.uuid])[flow.uuid]
    assert sorted(signal.number for signal in sent) == [1, 2, 3]
    assert sorted(stored) == sorted(sent)


def test_late_sender_skips_numbers_that_others_took(
    connection: Connection, flow: models.FlowDetail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others store more signals after its read than it tries numbers between two reads."""
    connection.save_outline(flow.uuid, ANY_OUTLINE)
    read, reads = type(connection).signals, []

    def read_late(self: Connection, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        signals = read(self, flow_uuids)
        if not reads:
            for number in range(1, 26):
                assert self.put_signal(flow.uuid, Signal("tick", "0", 1.0, number))
        reads.append(len(signals))
        return signals

    monkeypatch.setattr(type(connection), "signals", read_late)
    assert connection.send_signal(flow.uuid, Signal.of("tick", 1, 2.0)).number == 26
    assert len(reads) == 2


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


@places.dialects
def test_one_of_concurrent_signals_is_stored(
    backend: base.Backend, flow: models.FlowDetail
) -> None:
    gate = threading.Barrier(6)

    def give(number: int) -> bool:
        with backend.get_connection() as own:
            gate.wait(60)
            return own.put_signal(flow.uuid, Signal.of("s", number, float(number)))

    given = call_in_threads(give, range(6))
    with backend.get_connection() as connection:
        (signal,) = connection.signals([flow.uuid])[flow.uuid]
    assert [number for number in range(6) if given[number]] == [signal.value]


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


@places.dialects
def test_signal_name_of_maximum_length_is_stored(
    connection: Connection, flow: models.FlowDetail
) -> None:
    longest = Signal.of("𝄞" * 255, True, 1.0)
    connection.put_signal(flow.uuid, longest)
    assert connection.signals([flow.uuid]) == {flow.uuid: [longest]}


def test_name_must_leave_space_for_number_of_signal(
    connection: Connection, flow: models.FlowDetail
) -> None:
    connection.save_outline(flow.uuid, ANY_OUTLINE)
    longest = Signal.of("𝄞" * 253, True, 1.0)
    sent = [connection.send_signal(flow.uuid, longest._replace(at=float(at))) for at in range(9)]
    assert connection.signals([flow.uuid]) == {flow.uuid: sent}
    message = "Name of signal number 10 must have at most 252 characters, got 253: '𝄞"
    with pytest.raises(ValueError, match=message):
        connection.send_signal(flow.uuid, longest)
    too_long = Signal.of("x" * 254, True, 1.0)
    assert connection.send_signal(flow.uuid, too_long).number == 1
    with pytest.raises(ValueError, match=r"number 2 must have at most 253 characters, got 254"):
        connection.send_signal(flow.uuid, too_long)


def test_signals_are_exported_and_moved_with_their_flow(
    backend: base.Backend, connection: Connection, flow: models.FlowDetail
) -> None:
    second = FIRST.numbered(2)
    connection.put_signal(flow.uuid, FIRST)
    connection.put_signal(flow.uuid, second)
    connection.save_outline(flow.uuid, OUTLINE)
    document = operations.export(backend, flow.uuid)
    with backends.backend("memory://") as other:
        operations.import_flow(other, document)
        with other.get_connection() as there:
            assert there.signals([flow.uuid]) == {flow.uuid: [FIRST, second]}
        assert operations.export(other, flow.uuid)["signals"] == document["signals"]
    with backends.backend("memory://") as other:
        assert len(list(operations.move(backend, other))) == 1
        with other.get_connection() as there:
            assert there.signals([flow.uuid, "other"]) == {flow.uuid: [FIRST, second]}


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("", 1, ValueError, "1 to 255 printable characters, got ''"),
        ("a\nb", 1, ValueError, "printable"),
        (ANY_SIGNAL, 1, ValueError, "printable"),
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
