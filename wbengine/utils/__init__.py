"""TaskFlow's `utils`: the modules of `wbengine.compat` (`from wbengine.utils import misc`)."""

from __future__ import annotations

from wbengine import compat

__path__ = compat.__path__
