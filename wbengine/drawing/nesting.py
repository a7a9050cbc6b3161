"""What is in what, as lines of a language that has blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wbengine.drawing.scene import Box, Frame, Scene

__all__ = ["lines"]


def lines(
    scene: Scene, box: Callable[[Box], str], opened: Callable[[Frame], str], closed: str
) -> Iterator[str]:
    """A line for each box, and one before and one after what is in each frame; two blanks deeper
    for each frame around it."""
    for depth, item in scene.walk():
        margin = "  " * (depth + 1)
        if item is None:
            yield margin + closed
        else:
            yield margin + (box(item) if isinstance(item, Box) else opened(item))
