"""The record of a flow's earlier runs on workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from wbengine.engines.worker_based import _resume


class Executor:
    """An idle executor, whose next call to the ledger detects that the ledger has lost rows."""

    uuid = broker = ledger_place = "place"
    inheritable = True
    ledger = "digest"

    def __init__(self) -> None:
        self.others: set[str] = set()

    def guard(self, flow: str, check: Any, *, sole: bool) -> None: ...

    def sweep(self, ended: Any) -> None: ...

    def begin_run(self, flow: str, number: int, *, is_resumed: bool) -> int:
        self.ledger = "digest@2"
        return number

    def expect(self, flow: str, used: dict[str, str]) -> None:
        self.others = {*used} - {self.ledger}


def test_loss_of_rows_is_noticed_before_missing_rows_are_judged() -> None:
    record = {"executor": "e", "ledgers": {"digest": "place"}, "broker": "place"}
    storage = SimpleNamespace(
        flow_uuid="f",
        flow_meta={_resume.KEY: record},
        flow_detail=(),
        update_flow_metadata=lambda update: storage.flow_meta.update(update),
    )
    executor, lease = Executor(), SimpleNamespace(lease=SimpleNamespace(epoch=2), check=None)
    runs: Any = _resume.EarlierRuns(storage, executor, own=True)  # type: ignore[arg-type]
    runs.begin(lease)
    assert executor.others == {"digest"}
    assert [*storage.flow_meta[_resume.KEY]["ledgers"]] == ["digest", "digest@2"]
