"""Special results of `Job.expires_in`, under TaskFlow's names."""

from __future__ import annotations

from typing import Final

from wbengine.jobs.base import UnknownExpire

__all__ = ["DOES_NOT_EXPIRE", "KEY_NOT_FOUND", "UnknownExpire"]

DOES_NOT_EXPIRE: Final = UnknownExpire.DOES_NOT_EXPIRE
KEY_NOT_FOUND: Final = UnknownExpire.KEY_NOT_FOUND
