"""Key files of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from wbengine._security import keys


def shared(path: Path, *, encrypt: bool = False) -> Path:
    """Write a new key file of a fleet whose processes share a key."""
    keys.write(path, keys.new(encrypt=encrypt)[keys.ANY])
    return path


def in_use(path: Path, monkeypatch: pytest.MonkeyPatch, *, encrypt: bool = False) -> Path:
    """Write a new key file, which this process uses during the test."""
    monkeypatch.setenv(keys.VARIABLE, str(shared(path, encrypt=encrypt)))
    return path
