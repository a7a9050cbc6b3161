"""Transactions with submissions in processes that are killed.

For 10,000 submissions: `python -m tests.support.killed_callers`.
"""

from __future__ import annotations

from tests.support import killed_callers


def test_flows_exist_exactly_if_their_transactions_were_committed(uri: str) -> None:
    counts = killed_callers.run(uri, submissions=1000, kills=6)
    assert counts.pop("transactions") >= 1000
    assert 500 < counts.pop("commits") < 950
    assert set(counts.values()) == {0}, counts
