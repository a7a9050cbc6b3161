"""How long one call may take: its soft and its hard limit."""

from wbengine.concurrency.time_limits import UNLIMITED, TimeLimit, read

__all__ = ["UNLIMITED", "TimeLimit", "read"]
