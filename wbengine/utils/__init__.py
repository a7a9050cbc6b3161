"""TaskFlow's `utils`: the modules of `wbengine._compat` (`from wbengine.utils import misc`)."""

from __future__ import annotations

from wbengine._imports import lazily

lazily.alias_modules(__name__, "wbengine._compat")
