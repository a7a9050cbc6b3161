"""Fixtures: a broker in memory, and spans."""

from __future__ import annotations

import uuid

import pytest

from tests.telemetry import spans


@pytest.fixture
def place() -> str:
    """Return the URL of a broker in memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def memory() -> spans.Memory:
    return spans.Memory()
