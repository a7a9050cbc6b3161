"""The backend of Django's tasks: each enqueued task is a flow that conductors run.

Settings::

    TASKS = {
        "default": {
            "BACKEND": "wbengine.integrations.django.WbengineBackend",
            "OPTIONS": {"database": "default"},
        }
    }

With "wbengine.integrations.django" in `INSTALLED_APPS`, `manage.py wbengine serve` runs the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.integrations.django._backend import WbengineBackend
    from wbengine.integrations.django._databases import backend
    from wbengine.integrations.django._tasks import WbengineTask

__all__ = ["WbengineBackend", "WbengineTask", "backend"]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._backend": ("WbengineBackend",),
        "._databases": ("backend",),
        "._tasks": ("WbengineTask",),
    },
)
