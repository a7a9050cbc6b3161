"""What fits nowhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from wbengine.types import failure


@contextlib.contextmanager
def capture_failure() -> Iterator[failure.Failure]:
    """Keep the exception being handled as a `Failure`, whatever happens inside.

    ::

        try:
            connect()
        except OSError:
            with misc.capture_failure() as fail:
                clean_up()  # may raise and handle exceptions of its own
                report(fail)

    :raises RuntimeError: no exception is being handled.
    """
    if sys.exc_info()[1] is None:
        raise RuntimeError("No active exception is being handled")
    yield failure.Failure()
