"""`python -m wbengine.worker --topic t --tasks module`, the same as `wbengine worker`.

With `--celery-queue` the worker also consumes messages of Celery clients.

The first SIGTERM or SIGINT starts a warm shutdown: the worker takes no new requests, requeues those
that did not begin, and finishes running tasks (at most `--drain-timeout` seconds). The second one
starts a cold shutdown.

Exit codes: 0: all running tasks finished; 1: running tasks were abandoned, after a second signal or
the drain timeout; 2: wrong usage; 69: the broker or the ledger cannot be reached; 78: a setting in
the environment or a file is invalid.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    # Imported here, because child processes of pools import this module without the command.
    from wbengine._cli import app

    return app.main(["worker", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    from wbengine._imports import search_path

    search_path.put_current_folder_last()
    sys.exit(main())
