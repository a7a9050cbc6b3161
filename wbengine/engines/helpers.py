"""`engines.loading`, under the name that TaskFlow has."""

from wbengine.engines.loading import *  # noqa: F403
from wbengine.engines.loading import __all__ as __all__
