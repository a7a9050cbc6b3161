"""The records of retries (see `persistence.models`, where users find them)."""

from __future__ import annotations

from typing import Any, ClassVar

from wbengine import states
from wbengine.persistence import values
from wbengine.persistence.atom_details import AtomDetail
from wbengine.types import failure as ft

__all__ = ["RetryDetail"]

#: One entry of a retry's results: what it provided, and who failed with what while that was
#: provided.
HistoryEntry = tuple[Any, dict[str, ft.Failure]]


class RetryDetail(AtomDetail):
    """The record of a retry: `results` is its history, one entry for each time it executed."""

    __slots__ = ()
    kind: ClassVar[str] = "retry"

    def __init__(self, name: str, uuid: str | None = None) -> None:
        super().__init__(name, uuid)
        self.results: list[HistoryEntry] = []

    @property
    def last_results(self) -> Any:
        return self.results[-1][0] if self.results else None

    @property
    def last_failures(self) -> dict[str, ft.Failure]:
        return self.results[-1][1] if self.results else {}

    def put(self, state: str, result: Any) -> None:
        self.state = state
        if state == states.SUCCESS:
            self.results.append((result, {}))
            self.failure = self.revert_results = self.revert_failure = None
        elif state == states.FAILURE:
            self.failure = result
            self.revert_results = self.revert_failure = None
        elif state == states.REVERTED:
            self.results = []
            self.revert_results = result
            self.revert_failure = None
        elif state == states.REVERT_FAILURE:
            self.revert_failure = result
            self.revert_results = None

    def reset(self, state: str) -> None:
        super().reset(state)
        self.results = []

    def _copy_results(self) -> list[HistoryEntry]:
        return [(values.deep(value), dict(failures)) for value, failures in self.results]

    def _results_to_dict(self) -> list[Any]:
        return [
            [value, {name: values.failure_to_dict(failure) for name, failure in failures.items()}]
            for value, failures in self.results
        ]

    @classmethod
    def _results_from_dict(cls, data: Any) -> list[HistoryEntry]:
        return [
            (value, {name: ft.Failure.from_dict(told) for name, told in failures.items()})
            for value, failures in data or ()
        ]
