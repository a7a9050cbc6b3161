"""`flow_of`, under the name that the records of flows kept before have for it."""

from wbengine.engines.factories import flow_of

__all__ = ["flow_of"]
