"""Soft and hard time limits of calls."""

from wbengine._concurrency.time_limits import UNLIMITED, TimeLimit, read

__all__ = ["UNLIMITED", "TimeLimit", "read"]
