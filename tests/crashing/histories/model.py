"""The sequential model of one row of a ledger, without queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.linearizability import Operation

#: Epoch, state, holder and result.
Row = tuple[int, str, str | None, str | None]


def step(row: Row | None, operation: Operation) -> Sequence[tuple[Any, Row | None]]:
    """Return the possible replies, each with the next row; see `linearizability.Step`."""
    step_of = _STEPS[operation.name]
    possible: Sequence[tuple[Any, Row | None]] = step_of(row, *operation.arguments)
    return possible


def _open(row: Row | None, epoch: int) -> Any:
    if row is None or (row[1] == "open" and row[0] < epoch):
        return [(None, (epoch, "open", None, None))]
    return [(None, row)]


def _claim(row: Row | None, epoch: int, holder: str) -> Any:
    if row is None:
        return [(["MISSING", epoch, None, None], row)]
    if row[0] != epoch:
        return [(["STALE" if epoch < row[0] else "MISSING", row[0], None, None], row)]
    if row[1] == "open":
        return [(["GRANTED", epoch, None, holder], (epoch, "claimed", holder, None))]
    if row[1] == "claimed":
        return [(["HELD", epoch, None, row[2]], row)]
    return [(["DONE", epoch, row[3], None], row)]


def _finish(row: Row | None, epoch: int, holder: str, result: str) -> Any:
    if row == (epoch, "claimed", holder, None):
        return [(True, (epoch, "done", None, result))]
    return [(False, row)]


def _finish_and_publish(row: Row | None, epoch: int, holder: str, result: str) -> Any:
    """`Broker.finish`, which also reports success if it stores nothing: the row is missing, or an
    earlier attempt may have stored the result. A row that is being dropped may be refused.
    """
    if row is None:
        return [(True, row), (False, row)]
    if row[0] == epoch and row[1] == "done":
        return [(True, row)]
    return _finish(row, epoch, holder, result)


def _perhaps(outcomes: Any, row: Row | None) -> Any:
    """Return the outcomes of an operation without a reply, which may also have no effect."""
    return [*((None, after) for _, after in outcomes), (None, row)]


def _is_foreign(row: Row | None, epoch: int, holder: str, result: str) -> Any:
    ((is_finished, _), *_) = _finish_and_publish(row, epoch, holder, result)
    return [(not is_finished, row)]


def _release(row: Row | None, epoch: int, holder: str) -> Any:
    if row == (epoch, "claimed", holder, None):
        return [(True, (epoch, "open", None, None))]
    return [(False, row)]


def _undo(row: Row | None, epoch: int, holder: str) -> Any:
    """Undo a take. The row may belong to a later claim of the same holder, which remains."""
    return _perhaps(_release(row, epoch, holder), row)


def _reopen(row: Row | None, epoch: int) -> Any:
    if row is None:
        return [("not found", row)]
    if row[1] == "done":
        return [(row[3], row)]
    return [(None, (epoch, "open", None, None) if row[0] < epoch else row)]


def _revoke(row: Row | None, epoch: int | None) -> Any:
    if row is not None and row[1] == "open" and (epoch is None or row[0] <= epoch):
        return [(True, None)]
    return [(False, row)]


def _drop(row: Row | None) -> Any:
    return [(None, None)]


def _state(row: Row | None) -> Any:
    return [(None if row is None else list(row), row)]


_STEPS: dict[str, Any] = {
    "open": _open,
    "claim": _claim,
    "claim_perhaps": lambda row, *arguments: _perhaps(_claim(row, *arguments), row),
    "finish": _finish,
    "finish_and_publish": _finish_and_publish,
    "finish_perhaps": lambda row, *arguments: _perhaps(_finish(row, *arguments), row),
    "is_foreign": _is_foreign,
    "release": _release,
    "undo": _undo,
    "reopen": _reopen,
    "revoke": _revoke,
    "drop": _drop,
    "state": _state,
}
