"""Why a request is looked at again, searched for, or given up."""

from __future__ import annotations

from typing import Final

# Kinds of alarms.
#: The `transition_timeout` of a request is over.
EXPIRE: Final = "expire"
#: Nobody has promised to answer yet.
LOOK: Final = "look"
#: It waits for a worker, and people should know.
WARN: Final = "warn"
#: It waits for a worker although a message of it is out.
STRAY: Final = "stray"
#: Its `eta` has come.
DUE: Final = "due"
#: It is not to be started from now on.
LAPSE: Final = "lapse"
#: There was no queue for it a moment ago.
AGAIN: Final = "again"

#: What a request ends with that turns out not to run.
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"

#: Why it is searched for where there is no ledger: its message may be lost (so it seems, once and
#: twice: its queue does not have it), or who ran it.
UNSENT: Final = "unsent"
UNSEEN: Final = "unseen"
ABSENT: Final = "absent"
LOST: Final = "lost"
