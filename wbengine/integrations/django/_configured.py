"""The task backends of wbengine in the settings."""

from __future__ import annotations

from wbengine.integrations.django import _framework
from wbengine.integrations.django._backend import WbengineBackend

__all__ = ["databases"]


def databases() -> dict[str, str]:
    """Return the alias of the database of each task backend of wbengine.

    Wrong options raise Django's `ImproperlyConfigured`.
    """
    return {
        backend.alias: backend.database
        for backend in _framework.task_backends.all()
        if isinstance(backend, WbengineBackend)
    }
