"""`python -m wbengine.worker --topic t --tasks module` is `wbengine worker`.

It runs a worker until it is told to stop.

With `--celery-queue` it takes the messages of Celery's clients, too, or instead.

The first SIGTERM or SIGINT is a warm shutdown: nothing new is taken, what did not begin is handed
back, what runs is finished (for `--drain-timeout` at most).  The second one is a cold shutdown.

Exit codes: 0 it ended as asked, with running tasks finished; 1 it gave up running tasks, because it
was told twice, or they took longer than it may drain; 2 wrong usage; 69 the broker or the ledger
cannot be reached; 78 a setting, in the environment or in a file, is of the wrong kind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    # Not on top: each child process of a pool imports this module too, and needs no command.
    from wbengine.cli import app

    return app.main(["worker", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    from wbengine import _import_path

    _import_path.put_current_folder_last()
    sys.exit(main())
