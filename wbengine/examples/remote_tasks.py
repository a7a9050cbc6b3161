"""The tasks of `own_worker`, `julia_set` and `crash_and_resume`, for workers of their own.

A worker imports this module and nothing of engines, so it imports no flow and no engine either.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from wbengine import task


class Translate(task.Task):
    default_provides = "words"

    def execute(self, text: str) -> list[str]:
        return text.upper().split()


class Sign(task.Task):
    """Tells where it ran."""

    default_provides = ("telegram", "pid")

    def execute(self, words: list[str]) -> tuple[str, int]:
        return " STOP ".join(words), os.getpid()


class JuliaRow(task.Task):
    """One line of the picture: how soon each point of the plane flies away."""

    def execute(self, imaginary: float, width: int, seed: complex) -> str:
        shades = " .:-=+*#%@"
        row = ""
        for column in range(width):
            point = complex(3.2 * column / (width - 1) - 1.6, imaginary)
            steps = 0
            while abs(point) < 2 and steps < 27:
                point = point * point + seed
                steps += 1
            row += shades[steps * (len(shades) - 1) // 27]
        return row.rstrip()


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
