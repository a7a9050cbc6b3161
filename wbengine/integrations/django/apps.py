"""The application for `INSTALLED_APPS`, which contains the command `manage.py wbengine`."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["WbengineConfig"]


class WbengineConfig(AppConfig):  # type: ignore[misc]
    name = "wbengine.integrations.django"
    label = "wbengine"
    verbose_name = "wbengine"
