"""The tasks of `crash_and_resume`: a worker imports this module, and nothing of engines."""

from __future__ import annotations

import time
from pathlib import Path

from wbengine import task


class Expose(task.Task):
    """Photographs a star, which takes as long as there are clouds; leaves traces in the dome."""

    def execute(self, star: str, dome: str) -> str:
        print("exposing", star)
        Path(dome, f"{star} begun").touch()
        while not Path(dome, "clouds are gone").exists():
            time.sleep(0.01)
        print(star, "is exposed")
        Path(dome, f"{star} ended").touch()
        return f"plate of {star}"
