"""Listeners receive the events of an engine.

`Diary` is a custom listener that overrides the receivers it needs. `CaptureListener` stores all
events, `DurationListener` stores durations in the metadata. Each listens during its `with` block. A
task's own notifier receives the events that the task sends while it runs.

Prints::

    the flow 'tea' is RUNNING
    'water' is RUNNING
    'water' is done to 50%
    'water' is SUCCESS
    the flow 'tea' is SUCCESS
    4 events in all, and each took its time: True
"""

from __future__ import annotations

from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.listeners import base, capturing, timing
from wbengine.patterns import linear_flow


class Boil(task.Task):
    def execute(self) -> None:
        self.update_progress(0.5)


class Diary(base.Listener):
    def _flow_receiver(self, state: str, details: dict[str, Any]) -> None:
        print(f"the flow {details['flow_name']!r} is {state}")

    def _task_receiver(self, state: str, details: dict[str, Any]) -> None:
        print(f"{details['task_name']!r} is {state}")


def progressed(event: str, details: dict[str, Any]) -> None:
    if 0 < details["progress"] < 1:
        print(f"'water' is done to {details['progress']:.0%}")


def main() -> None:
    water = Boil("water")
    water.notifier.register(task.EVENT_UPDATE_PROGRESS, progressed)
    with kinds.chosen(__doc__) as options:
        engine = engines.load(linear_flow.Flow("tea").add(water), **options)
        heard = capturing.CaptureListener(engine)
        with heard, Diary(engine), timing.DurationListener(engine):
            engine.run()
    (detail,) = engine.storage.flow_detail
    took = [engine.storage.flow_meta["duration"], detail.meta["duration"]]
    print(f"{len(heard.values)} events in all, and each took its time: {min(took) > 0}")


if __name__ == "__main__":
    main()
