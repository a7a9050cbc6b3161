"""Storage of signals that are sent to a flow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine.persistence import base, models
from wbengine.signals import Signal
from wbengine.types import codec
from wbengine.types._outline import ANY_SIGNAL

__all__ = ["awaited", "numbers_after_discarded", "send"]

#: Maximum number of times that a sender of a signal reads the stored signals, and of numbers that
#: it tries after each read. Only concurrent senders of the same name can take these numbers.
_MAX_SIGNAL_READS: Final = 100
_PUTS_PER_SIGNAL_READ: Final = 10


def awaited(connection: base.Connection, flow_uuid: str) -> list[str]:
    """Return the awaited signals. See `Connection.awaited_signals`."""
    with codec.unknown_classes_as_text():  # Only waits and states are used.
        records = {record.name: record for record in connection.get_flow_details(flow_uuid)}
    outline = connection.get_outline(flow_uuid)
    names: dict[str, None] = {}
    for node in () if outline is None else outline.nodes:
        record = records.get(node.name)
        is_complete = record is not None and record.state == states.SUCCESS
        if node.signal not in (None, ANY_SIGNAL) and not is_complete:
            names[str(node.signal)] = None
    waits = (record.waits_for for record in records.values())
    names.update((wait.signal, None) for wait in waits if wait is not None and wait.signal)
    return list(names)


def send(
    connection: base.Connection,
    flow_uuid: str,
    signal: Signal,
    known: Collection[str] | None,
    *,
    any_name: bool,
) -> Signal:
    """Check and store a signal. See `Connection.send_signal`."""
    flow = connection.get_flow_details(flow_uuid, lazy=True)
    if known is None and (outline := connection.get_outline(flow_uuid)) is not None:
        known, any_name = outline.signals, outline.accepts_any_signal
    any_name = any_name or known is None
    if known is not None and not any_name and signal.name not in known:
        raise exceptions.NotFound(
            f"Flow {flow.name!r} has no task that waits for signal"
            f" {signal.name!r}{object_names.hint(signal.name, known)}"
        )
    if flow.state in states.FLOW_ENDED:
        raise exceptions.InvalidState(
            f"Flow {flow_uuid} has ended in {flow.state}: signal {signal.name!r} was not sent"
        )
    if any(wait.expects(signal.name) for wait in flow.waits_for):
        # Loaded here, because most waits expect no type.
        stored = connection.signals([flow_uuid]).get(flow_uuid, ())
        object_names.load("wbengine.persistence._signal_types:check")(
            signal, flow.waits_for, stored
        )
    if any_name:
        return _put_next(connection, flow_uuid, signal.distinct())
    if not connection.put_signal(flow_uuid, signal):
        with codec.unknown_classes_as_text():
            numbers = numbers_after_discarded(signal.name, connection.get_flow_details(flow_uuid))
        for number in numbers:
            numbered = signal.distinct().numbered(number)
            if connection.put_signal(flow_uuid, numbered):
                return numbered
        raise exceptions.Duplicate(
            f"Flow {flow_uuid} already has signal {signal.name!r}: its first value counts"
        )
    return signal


def numbers_after_discarded(name: str, records: Iterable[models.AtomDetail]) -> list[int]:
    """Return the numbers of the signals that tasks accept because they discarded the earlier ones.

    :param records: those of a flow without workflows.
    """
    waits = (record.waits_for for record in records)
    numbers = {wait.number for wait in waits if wait is not None and wait.expects(name)}
    return sorted(numbers - {1})


def _put_next(connection: base.Connection, flow_uuid: str, signal: Signal) -> Signal:
    """Store a signal with the next free number of its name, and return it."""
    for _ in range(_MAX_SIGNAL_READS):
        stored = connection.signals([flow_uuid]).get(flow_uuid, ())
        latest = max((each.number for each in stored if each.name == signal.name), default=0)
        for number in range(latest + 1, latest + 1 + _PUTS_PER_SIGNAL_READ):
            numbered = signal.numbered(number)
            if connection.put_signal(flow_uuid, numbered):
                return numbered
    raise exceptions.StorageFailure(
        f"Signal {signal.name!r} to flow {flow_uuid} was not stored: other senders took"
        f" {_MAX_SIGNAL_READS * _PUTS_PER_SIGNAL_READ:,} numbers; send it again"
    )
