"""Exchanges on each kind of broker, and fleets that observe them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import broker_url
from wbengine.fleet import client as fleets


@pytest.fixture(
    params=(
        "memory",
        "filesystem",
        "redis",
        "rabbitmq",
        pytest.param("postgresql", marks=pytest.mark.slow),
    )
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return the options of the broker and the ledger for an engine."""
    ledger = {"ledger": f"dir://{tmp_path}/ledger"} if request.param == "rabbitmq" else {}
    return {"url": broker_url(request.param, request, tmp_path), **ledger}


@pytest.fixture
def looking(place: dict[str, Any]) -> Iterator[fleets.Fleet]:
    with fleets.Fleet(url=place["url"]) as found:
        yield found
