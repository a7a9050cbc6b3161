"""Replies of the scripts of the ledger in Redis."""

from __future__ import annotations

import pytest

from wbengine.engines.worker_based.ledger import _ledger_scripts
from wbengine.engines.worker_based.ledger._base import NO_FENCE
from wbengine.transports import _redis_scripts


def test_reply_with_another_number_of_rows_is_refused() -> None:
    read = _ledger_scripts.read_rows(["a", "b"]).read
    assert read([None, None]) == [None, None]
    with pytest.raises(ValueError, match="shorter"):
        read([None])


def test_revocation_without_removed_row_has_no_claim_count() -> None:
    read = _ledger_scripts.revoke_rows([("a", 1, NO_FENCE)]).read
    assert read([[0], None]) == ([False], 0)
    assert read([[1], 7]) == ([True], 7)


def test_keys_expire_after_the_documented_times() -> None:
    constants = _redis_scripts.CONSTANTS
    assert constants["OWNED_QUEUE_MS"] == 10 * 60 * 1000
    assert constants["UNUSED_KEY_MS"] == constants["ROW_MS"] == 7 * 24 * 3600 * 1000
    numbers = [value for name, value in constants.items() if name.endswith("_MS")]
    assert all(isinstance(value, int) for value in numbers)  # Redis rejects fractions.
