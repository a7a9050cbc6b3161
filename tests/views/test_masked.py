"""Redaction of all texts in views."""

from __future__ import annotations

from wbengine.fleet._ledgers import RowView
from wbengine.fleet.client import WorkerView, WorkView
from wbengine.views.redaction import Redactor, redacted

CANARY = "c4n4ry-of-workers"


def test_redacted_worker_and_row_views_contain_no_secret():
    bad = f"x token={CANARY}"
    worker = WorkerView(
        bad, bad, 4711, "idle", (bad,), (bad, "q"), (bad,), 2, 1, 5.0, 4.0, bad, bad,
        current=(WorkView(bad, bad, 3.0),),
    )  # fmt: skip
    row = RowView(bad, 1, "open", None, 2.5)
    told = redacted([worker, row], Redactor())
    assert CANARY not in repr(told)
    assert told[0].current[0].task == "x token=***"
    assert (told[0].pid, told[0].heard, told[1].holder, told[1].age) == (4711, 5.0, None, 2.5)


def test_view_without_secrets_is_returned_unchanged():
    row = RowView("r", 1, "open", "h:1", 2.5)
    assert redacted([row], Redactor())[0] is row
