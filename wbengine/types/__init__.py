"""Values that travel between the parts: failures and notifications; and TaskFlow's other types."""

from __future__ import annotations

import pathlib

# Only users of TaskFlow's names import these.
__path__ = [*__path__, str(pathlib.Path(__file__).parents[1] / "compat" / "types")]
