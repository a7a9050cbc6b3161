"""`manage.py wbengine`: the command `wbengine` in a process with the settings of Django."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

__all__ = ["Command"]

_VARIABLE = "WBENGINE_PERSISTENCE"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Run wbengine with the store of the task backend, for example: manage.py wbengine serve."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command with all arguments, and end the process with its exit code."""
        from wbengine._cli import app
        from wbengine.integrations.django import _connections

        _connections.close_around_calls()
        _set_default_store()
        sys.exit(app.main(argv[2:]))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command with arguments of `call_command`."""
        self.run_from_argv(["manage.py", "wbengine", *args])


def _set_default_store() -> None:
    """Let commands without `--persistence` use the store of the first task backend."""
    for backend in getattr(settings, "TASKS", {}).values():
        url = backend.get("OPTIONS", {}).get("persistence")
        if url is not None:
            os.environ.setdefault(_VARIABLE, url)
            return
