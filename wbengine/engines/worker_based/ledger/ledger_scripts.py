"""Lua scripts of the Redis ledger; each is one atomic step in the server.

`transports._redis_scripts` describes the keys. A server without free memory refuses a script whose
first write needs memory, but no later write: opening a row fails, completing one does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wbengine import _lua
from wbengine.transports import _redis_scripts

_FOLDER: Final = Path(__file__).parent / "redis_scripts"
SCRIPTS: Final = _lua.load(_FOLDER, _redis_scripts.CONSTANTS, [_redis_scripts.SHARED])

#: Suffix of a user that also consumes messages here. Its heartbeats are those of its consumer.
CONSUMER: Final = ".c"
