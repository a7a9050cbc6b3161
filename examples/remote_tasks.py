"""The tasks of `crash_and_resume`, in a module for workers that imports no engine."""

from __future__ import annotations

import time
from pathlib import Path

from wbengine import task


class Expose(task.Task):
    """Photographs a star, which lasts until the sky is clear; creates files in the dome."""

    def execute(self, star: str, dome: str) -> str:
        print("exposing", star)
        Path(dome, f"{star} begun").touch()
        while not Path(dome, "clouds are gone").exists():
            time.sleep(0.01)
        print(star, "is exposed")
        Path(dome, f"{star} ended").touch()
        return f"plate of {star}"
