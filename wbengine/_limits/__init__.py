"""Limits of tasks and flows (`rate_limit`, `concurrency`), shared by all engines of a store.

A permit is the right to run one task under a limit.
"""

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine._limits.redis_accounts import RedisStore
    from wbengine._limits.sql_accounts import SQLStore

__all__ = ["RedisStore", "SQLStore"]

# Databases and Redis are only imported where limits are stored in them.
__getattr__, __dir__ = lazily.lazy_attributes(
    __name__, {".redis_accounts": ("RedisStore",), ".sql_accounts": ("SQLStore",)}
)
