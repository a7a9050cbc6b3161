"""Fixtures of places for payloads."""

from pathlib import Path

import pytest

from tests.support.buckets import bucket, location, s3_server
from wbengine._payloads.payloads import Payloads

__all__ = ["bucket", "location", "s3_server"]


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    """Payloads in a folder."""
    return Payloads(str(tmp_path / "payloads"))


@pytest.fixture
def anywhere(location: str) -> Payloads:
    """Payloads in a place of each kind."""
    return Payloads(location)
