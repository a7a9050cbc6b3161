"""Values that several packages exchange, and further types of TaskFlow."""

from __future__ import annotations

import pathlib

# Only code that uses TaskFlow's names imports the modules in this folder.
__path__ = [*__path__, str(pathlib.Path(__file__).parents[1] / "compat" / "types")]
