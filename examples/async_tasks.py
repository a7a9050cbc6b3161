"""`async def execute` on every kind of engine, and engines that are awaited.

In a choir of a hundred singers each one takes a seat and sings when all are seated. With the thread
executor, all of them wait in one event loop, without a thread for each. The serial engine would
wait forever, because it runs one task after the other. The songs run on the selected kind of
engine, two flows at once with `asyncio.gather`.

Prints::

    100 voices at once
    two songs: ['hey', 'ho']
"""

from __future__ import annotations

import asyncio
from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import linear_flow, unordered_flow

VOICES = 100
SEATED: list[str] = []


class Sing(task.Task):
    async def execute(self) -> int:
        SEATED.append(self.name)
        while len(SEATED) < VOICES:
            await asyncio.sleep(0.001)
        return len(SEATED)


class Song(task.Task):
    default_provides = "song"

    async def execute(self, words: str) -> str:
        await asyncio.sleep(0.01)
        return words


async def choir() -> None:
    voices = unordered_flow.Flow("choir")
    voices.add(*(Sing(f"voice {number}", provides=f"{number}") for number in range(VOICES)))
    values = await engines.arun(voices, engine="parallel", executor="threads")
    print(max(values.values()), "voices at once")


async def songs(**options: Any) -> None:
    flows = [linear_flow.Flow(words).add(Song()) for words in ("hey", "ho")]
    sung = await asyncio.gather(
        *(engines.arun(flow, inputs={"words": flow.name}, **options) for flow in flows)
    )
    print("two songs:", [values["song"] for values in sung])


def main() -> None:
    with kinds.chosen(__doc__) as options:
        asyncio.run(choir())
        asyncio.run(songs(**options))


if __name__ == "__main__":
    main()
