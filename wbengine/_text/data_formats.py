"""The formats in which processes exchange and store data, with their versions.

A release that changes a format reads the new version, but writes the previous one. The next
release writes the new version. So each release reads everything that the one before and the one
after it write, in messages and in stored data. Processes of both can be mixed, upgraded and
downgraded in any order, without an agreement between them.

Stored data keeps its version until a release converts it. The reader of a version is removed only
after that release.

The tables of SQL stores have revisions instead (`persistence.backends._sql.schema_revisions`).
Descriptions of failures, exported flows and key files have their own versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import wbengine
from wbengine import exceptions


class Format(NamedTuple):
    """The versions of one format that this release uses."""

    #: What has the format, for messages.
    name: str
    #: Version that this release writes.
    written: int
    #: Versions that it reads, in order.
    read: tuple[int, ...]

    def reads(self, version: Any) -> bool:
        return type(version) is int and version in self.read

    def problem(self, thing: str, version: Any) -> str | None:
        """Return why this release cannot read a thing, or None if it can."""
        if self.reads(version):
            return None
        readable = f"format{'s' * (len(self.read) > 1)} {' and '.join(map(str, self.read))}"
        newer = type(version) is int and version > self.read[-1]
        advice = ": use a newer version of wbengine" if newer else ""
        return (
            f"{thing} has {self.name} format {str(version)[:20]}, and wbengine"
            f" {wbengine.__version__} reads {readable}{advice}"
        )

    def check(
        self,
        thing: str,
        version: Any,
        error: Callable[[str], Exception] = exceptions.IncompatibleVersion,
    ) -> None:
        """Check that this release can read a thing.

        :raises error: if it cannot.
        """
        problem = self.problem(thing, version)
        if problem is not None:
            raise error(problem)


#: Messages between engines and workers: headers, bodies, their layout in Redis, in folders and in
#: results of ledgers.
MESSAGE: Final = Format("message", 1, (1,))
#: Keys of the transport and of the ledger in Redis.
REDIS: Final = Format("key", 2, (2,))
#: The database of a folder: its transport and its ledger.
FOLDER: Final = Format("folder", 1, (1,))
#: Tables of a ledger in a database.
LEDGER: Final = Format("ledger", 1, (1,))
#: Tables of the transports through PostgreSQL and MySQL.
QUEUES: Final = Format("queue", 1, (1,))
#: Jobs on boards in Redis, ZooKeeper and etcd. Jobs in a database are tables.
JOB: Final = Format("job", 1, (1,))
#: Structure of a flow for pictures, beside its records.
OUTLINE: Final = Format("outline", 1, (1,))
#: Signatures of messages and of stored records.
SIGNATURE: Final = Format("signature", 1, (1,))

ALL: Final = (MESSAGE, REDIS, FOLDER, LEDGER, QUEUES, JOB, OUTLINE, SIGNATURE)
