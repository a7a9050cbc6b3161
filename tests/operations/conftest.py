"""Stores for flows whose tasks record their calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operations import flows, undo_flows
from wbengine.persistence import backends, base


@pytest.fixture(autouse=True)
def clear_tasks() -> None:
    """Clear the records of calls, and let no task fail."""
    for names in (flows.DONE, flows.FAILING, undo_flows.UNDONE, undo_flows.FAILING):
        names.clear()


@pytest.fixture
def backend() -> Iterator[base.Backend]:
    """A store in memory."""
    with backends.backend("memory://") as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    """A store in a database."""
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened
