"""What the atoms of one run came to: results, failures, and the histories of retries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import atom as atom_module
from wbengine import exceptions, states
from wbengine import retry as retry_module
from wbengine.persistence import base, models, records
from wbengine.types import failure as ft

__all__ = ["Results"]

_WITH_REVERT_RESULT: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})


class Results(records.Records):
    """Records with what is asked of them when an atom has ended (`Storage` adds the rest)."""

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        scope_fetcher: Any = None,
    ) -> None:
        super().__init__(flow_detail, backend, scope_fetcher)
        self._resumed = len(flow_detail) > 0
        self._failed: dict[str, ft.Failure] = self._failures()
        self._failed_view: Mapping[str, ft.Failure] | None = None

    def _failures(self) -> dict[str, ft.Failure]:
        return {
            name: record.failure
            for name, record in self._by_name.items()
            if record.failure is not None
        }

    def _take_over(self, kept: models.FlowDetail) -> None:
        super()._take_over(kept)
        self._resumed = True
        self._failed, self._failed_view = self._failures(), None

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        wanted = list(atoms)
        uuids = super().ensure_atoms(wanted)
        if self._resumed:
            self._claim_failures({atom.name: atom._home() for atom in wanted})
        return uuids

    def _claim_failures(self, homes: Mapping[str, str]) -> None:
        """Tell failures that were read back which modules their atoms come from."""
        for name, home in homes.items():
            record = self._by_name[name]
            for part in (record, *(record.items or ())):
                for failure in (part.failure, part.revert_failure):
                    if failure is not None:
                        failure.belongs_to(home)
            if isinstance(record, models.RetryDetail):
                for _, failures in record.results:
                    for failed, failure in failures.items():
                        if failed in homes:
                            failure.belongs_to(homes[failed])

    def reset(self, atom_name: str, state: str = states.PENDING) -> None:
        """Forget an atom's results and failures; its attempt number goes on rising.

        What was injected for the flow stays.

        :raises ValueError: atoms have no such state.
        """
        if atom_name == self.injector_name:
            return
        record = self.record(atom_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self._lock:
            record.reset(state)
            self._forget_failure(atom_name)
        self.mark(record)

    def rename(self, names: Mapping[str, str]) -> None:
        """Let what is recorded of atoms be what is known of others; also in histories.

        :param names: old name -> new name, which no record has.
        :raises NotFound: there is no record of an old name.
        """
        if not names:
            return
        changed = [self.record(old) for old in names]
        with self._lock:
            for record in changed:
                del self._by_name[record.name]
                record.name = names[record.name]
                self._by_name[record.name] = record
            for old in names.keys() & self._failed.keys():
                self._failed[names[old]] = self._failed.pop(old)
            self._failed_view = None
            for record in self._by_name.values():
                if isinstance(record, models.RetryDetail):
                    told = [failed for _, failed in record.results if names.keys() & failed.keys()]
                    for failed in told:
                        for old in names.keys() & failed.keys():
                            failed[names[old]] = failed.pop(old)
                    changed += [record] if told else []
        for record in changed:
            self.mark(record)

    def save_retry_failure(
        self, retry_name: str, failed_atom_name: str, failure: ft.Failure
    ) -> None:
        """Add to the history who failed while the retry's latest value was provided.

        Before it provided anything there is nothing to add to, and nothing is done.

        :raises TypeError: not a retry, or no `Failure`.
        """
        record = self._retry(retry_name)
        if not isinstance(failure, ft.Failure):
            raise TypeError(f"A history takes a Failure, not {failure!r}")
        if record.results:
            with self._lock:
                record.last_failures[failed_atom_name] = failure
            self.mark(record)

    def cleanup_retry_history(self, retry_name: str, state: str) -> None:
        """Forget a retry's history and enter `state`.

        :raises TypeError: not a retry.
        :raises ValueError: atoms have no such state.
        """
        record = self._retry(retry_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self._lock:
            record.state = state
            record.results = []
            record.failure = None
            self._forget_failure(retry_name)
        self.mark(record)

    def get_execute_result(self, atom_name: str) -> Any:
        """What `execute` returned, or its failure; a retry's whole history.

        A failure is there also when the atom was reverted after it.

        :raises NotFound: there is neither (not executed, reset, ignored, reverted).
        """
        record = self.record(atom_name)
        if record.failure is not None:
            return record.failure
        if isinstance(record, models.RetryDetail):
            if record.results and record.state != states.REVERT_FAILURE:
                return record.results
        elif record.state in models.WITH_RESULT:
            return record.results
        raise exceptions.NotFound(
            f"The result of atom {atom_name!r} is not known (its state is {record.state})"
        )

    get = get_execute_result

    def get_revert_result(self, atom_name: str) -> Any:
        """What `revert` returned, or its failure.

        :raises NotFound: it was not reverted.
        """
        record = self.record(atom_name)
        if record.state in _WITH_REVERT_RESULT:
            return (
                record.revert_failure
                if record.revert_failure is not None
                else record.revert_results
            )
        raise exceptions.NotFound(
            f"The result of reverting atom {atom_name!r} is not known (its state is {record.state})"
        )

    def get_execute_failures(self) -> Mapping[str, ft.Failure]:
        """`{atom name: Failure}` of the latest executions (a snapshot, shared by its readers)."""
        view = self._failed_view
        if view is None:
            view = self._failed_view = dict(self._failed)
        return view

    get_failures = get_execute_failures

    def get_revert_failures(self) -> dict[str, ft.Failure]:
        """`{atom name: Failure}` of the latest reversions; O(atoms)."""
        return {
            name: record.revert_failure
            for name, record in self._by_name.copy().items()
            if record.revert_failure is not None
        }

    def get_execute_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).failure

    def get_revert_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).revert_failure

    def has_failures(self) -> bool:
        """Whether an atom's latest execution or reversion failed."""
        return bool(self._failed) or bool(self.get_revert_failures())

    def get_retry_history(self, retry_name: str) -> retry_module.History:
        """What a retry provided so far, and what became of it.

        :raises TypeError: not a retry.
        """
        record = self._retry(retry_name)
        return retry_module.History(list(record.results), failure=record.failure)

    def get_retry_histories(self) -> list[tuple[str, retry_module.History]]:
        return [
            (name, self.get_retry_history(name))
            for name, record in self._by_name.copy().items()
            if isinstance(record, models.RetryDetail)
        ]

    def _retry(self, retry_name: str) -> models.RetryDetail:
        record = self.record(retry_name)
        if not isinstance(record, models.RetryDetail):
            raise TypeError(f"Atom {retry_name!r} is a {record.kind}, not a retry")
        return record

    def _forget_failure(self, atom_name: str) -> None:
        if self._failed.pop(atom_name, None) is not None:
            self._failed_view = None
