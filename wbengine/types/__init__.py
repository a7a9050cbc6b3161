"""Values that several packages exchange, and further types of TaskFlow."""

from __future__ import annotations

from wbengine import _lazily

_lazily.alias_modules(__name__, "wbengine.compat.types")
