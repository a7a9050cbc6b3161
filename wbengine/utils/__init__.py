"""TaskFlow's `utils`: the modules of `wbengine.compat` (`from wbengine.utils import misc`)."""

from __future__ import annotations

from wbengine import _lazily

_lazily.alias_modules(__name__, "wbengine.compat")
