"""Transactions with submissions in processes that are killed.

For 10,000 submissions: `python -m tests.support.killed_callers`.
"""

from __future__ import annotations

from tests.support import killed_callers
from tests.support.amounts import amount


def test_flows_exist_exactly_if_their_transactions_were_committed(uri: str) -> None:
    submissions = amount(240, 1000)
    counts = killed_callers.run(uri, submissions=submissions, kills=4)
    assert counts.pop("transactions") >= submissions
    assert submissions / 2 < counts.pop("commits") < 0.95 * submissions
    assert set(counts.values()) == {0}, counts
