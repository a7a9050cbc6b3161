"""Values that several packages exchange, and further types of TaskFlow."""

from __future__ import annotations

from wbengine._imports import lazily

lazily.alias_modules(__name__, "wbengine._compat.types")
