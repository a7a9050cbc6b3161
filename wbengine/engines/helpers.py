"""`engines._loading` under TaskFlow's module name."""

from wbengine.engines._loading import *  # noqa: F403
from wbengine.engines._loading import __all__ as __all__
