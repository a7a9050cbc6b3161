"""The application for `INSTALLED_APPS`, with the command `manage.py wbengine`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate

from wbengine.integrations.django import _configured, _databases

__all__ = ["WbengineConfig"]


class WbengineConfig(AppConfig):  # type: ignore[misc]
    name = "wbengine.integrations.django"
    label = "wbengine"
    verbose_name = "wbengine"

    def ready(self) -> None:
        checks.register(_check_backends)
        post_migrate.connect(_create_tables, sender=self)


def _check_backends(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report settings of task backends that cannot be used, without a connection."""
    try:
        for database in _configured.databases().values():
            _databases.url_of(database)
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="wbengine.E001")]
    return []


def _create_tables(using: str, **kwargs: Any) -> None:
    """Create the tables after `migrate`, also in the database of tests."""
    if using in _configured.databases().values():
        try:
            _databases.backend(using)
        except ImproperlyConfigured:
            return  # The first use reports it: other tests need no tables.
