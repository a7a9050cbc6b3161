"""Names and numbers of signals."""

from __future__ import annotations

import pytest

from wbengine import exceptions, task
from wbengine.persistence import backends, models
from wbengine.signals import Signal
from wbengine.types._outline import ANY_SIGNAL, Outline, OutlineNode


@pytest.mark.parametrize(
    ("stored_name", "name", "number"),
    [
        ("paid", "paid", 1),
        ("paid\x1f2", "paid", 2),
        ("paid #2\x1f10", "paid #2", 10),
        ("a\nb\x1f3", "a\nb", 3),
        ("paid\x1f2\x1f3", "paid\x1f2", 3),
        *((odd, odd, 1) for odd in ("p\x1f1", "p\x1f02", "p\x1f", "\x1f2", "p\x1f\u0662")),
        ("p\x1f" + "9" * 5000, "p\x1f" + "9" * 5000, 1),
    ],
)
def test_stored_name_contains_name_and_number(stored_name: str, name: str, number: int) -> None:
    signal = Signal.from_stored(stored_name, "7", 1.5)
    assert signal == (name, "7", 1.5, number)
    assert signal.stored_name == stored_name


def test_numbered_name_must_not_end_with_space() -> None:
    with pytest.raises(ValueError, match=r"must not end with a space .* got 'paid '"):
        Signal.of("paid ", None, 1.5).numbered(1)


def test_distinct_signals_differ_with_equal_values() -> None:
    signal = Signal.of("paid", {"by": None}, 1.5)
    distinct = {signal.distinct() for _ in range(100)}
    assert len(distinct) == 100 and signal not in distinct
    assert [each.value for each in distinct] == [{"by": None}] * 100


def test_outline_with_workflow_accepts_any_signal() -> None:
    """Its marker is not among the names."""
    nodes = [OutlineNode("f", "flow", None), OutlineNode("w", "task", 0, None, None, "paid")]
    assert not Outline(tuple(nodes), ()).accepts_any_signal
    nodes += [OutlineNode("a", "task", 0, None, None, ANY_SIGNAL)] * 2
    outline = Outline.from_bytes(Outline(tuple(nodes), ()).to_bytes())
    assert outline.accepts_any_signal and outline.signals == ["paid"]


def test_task_cannot_wait_for_marker_of_workflows() -> None:
    with pytest.raises(ValueError, match="must be 1 to 255 printable characters"):
        task.WaitFor(ANY_SIGNAL)


def test_signal_is_refused_if_no_number_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with backends.backend("memory://") as backend, backend.get_connection() as connection:
        book, flow, tried = models.LogBook("b"), models.FlowDetail("f"), []
        book.add(flow)
        connection.save_logbook(book)

        def take_number(uuid: str, signal: Signal) -> bool:
            tried.append(signal.number)
            return False

        monkeypatch.setattr(connection, "put_signal", take_number)
        with pytest.raises(exceptions.StorageFailure, match="other senders took 1,000 numbers"):
            connection.send_signal(flow.uuid, Signal.of("s", 1, 1.0), [], any_name=True)
    assert len(tried) == 1000
