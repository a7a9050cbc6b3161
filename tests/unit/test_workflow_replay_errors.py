"""Messages about workflow functions that do not repeat their calls."""

from __future__ import annotations

import pytest

from tests.support.continued_engines import continued, parked
from wbengine import engines, exceptions, steps, task
from wbengine.persistence import backends

USED: list[int] = []


@task.task
def log_in(user: str, password: str, number: int) -> str:
    return user


@task.workflow
def unstable(steps: steps.Steps, kind: str) -> None:
    USED.append(len(USED))
    if kind == "wait":
        steps.sleep(0 if USED == [0] else 0.001)
    elif kind == "long":
        steps.run(log_in, "x" * 300, "-", number=USED[-1])
    else:
        steps.run(log_in, "eve", "hunter22hunter", number=USED[-1])
    steps.wait_for("go")


@pytest.mark.parametrize(
    ("kind", "recorded", "actual"),
    [
        (
            "secret",
            'log_in({"user":"eve","password":"***","number":0}) and is now ',
            'log_in({"user":"eve","password":"***","number":1}). If the code has changed,',
        ),
        ("wait", 'Sleep({"signal":"","timeout":0}) and is', '"timeout":0.001}). If the code'),
        ("long", f'log_in({{"user":"{"x" * 191}...) and is now ', "...) with other values. If"),
    ],
)
def test_message_about_other_arguments_shows_both(kind: str, recorded: str, actual: str) -> None:
    USED.clear()
    backend = backends.fetch("memory://")
    engine = parked(engines.load(unstable, {"kind": kind}, backend=backend))
    resumed = continued(engine, unstable, backend)
    with pytest.raises(exceptions.NonDeterministicWorkflow) as caught:
        resumed.run()
    message = str(caught.value)
    assert recorded in message and actual in message
    assert "hunter" not in message
    assert "Otherwise the function uses something that a replay does not repeat" in message
    backend.close()


@task.workflow
def changed(steps: steps.Steps) -> int:
    """Ask for the version of a change later in the third run than in the second one."""
    USED.append(len(USED))
    if len(USED) == 2:
        steps.version("late", 2)
        steps.sleep(0)
    steps.run(log_in, "eve", "-", number=0)
    steps.wait_for("go")
    return steps.version("late", 2)


def test_differing_replay_leaves_no_version_behind() -> None:
    USED.clear()
    backend = backends.fetch("memory://")
    engine = parked(engines.load(changed, backend=backend))
    uuid = engine.storage.flow_uuid
    for suspends in (True, False):
        resumed = continued(engine, changed, backend)
        resumed.suspends_on_difference = suspends
        if suspends:
            with pytest.raises(exceptions.NonDeterministicWorkflow):
                resumed.run()
            assert backend.get_connection().get_flow_details(uuid).is_blocked
            resumed.signal("go")
        else:
            resumed.run()
            assert resumed.storage.fetch("result") == 2
    backend.close()
