"""Which of our tasks runs for which of Celery's names."""

from __future__ import annotations

import pytest

from wbengine.engines.worker_based.endpoint import Endpoint
from wbengine.interop.celery.worker import mapping

from . import errands

HERE = errands.__name__


def test_a_task_is_known_by_its_place_and_by_its_own_name() -> None:
    tasks = mapping.Tasks([f"{HERE}:add", errands.Careful])
    assert tasks.names == ("sum", f"{HERE}.Careful", f"{HERE}.add")
    assert len(tasks) == 3
    assert tasks.find("sum") == tasks.find(f"{HERE}.add") == Endpoint(errands.add)
    assert tasks.find("add") is None
    assert tasks.hint(f"{HERE}.ad") == f" (did you mean '{HERE}.add'?)"


def test_a_module_stands_for_all_its_tasks() -> None:
    tasks = mapping.Tasks([HERE])
    assert tasks.find(f"{HERE}.later") == Endpoint(errands.later)
    assert tasks.find(f"{HERE}.Needy") is not None  # whoever calls it is told why it cannot be


def test_a_mapping_goes_first() -> None:
    tasks = mapping.Tasks([errands.add], [f"proj.tasks.plus = {HERE}:add", f"sum={HERE}:later"])
    assert tasks.find("proj.tasks.plus") == Endpoint(errands.add)
    assert tasks.find("sum") == Endpoint(errands.later)
    assert tasks.find(f"{HERE}.add") == Endpoint(errands.add)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("add", "is not of the form 'name=module:task'"),
        ("=x:y", "is not of the form"),
        ("add=", "is not of the form"),
        (f"add={HERE}", "is a module: name one task"),
        (f"add={HERE}:Broken", "neither a task class nor a module"),
    ],
)
def test_a_mapping_must_make_sense(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mapping.Tasks([], [text])


def test_a_name_stands_for_one_task() -> None:
    with pytest.raises(ValueError, match="'x' would be both"):
        mapping.Tasks([], [f"x={HERE}:add", f"x={HERE}:later"])
    mapping.Tasks([errands.add, errands.add], [f"x={HERE}:add", f"x={HERE}:add"])


def test_a_module_must_be_there() -> None:
    with pytest.raises(ImportError, match="did you mean 'add'"):
        mapping.Tasks([], [f"x={HERE}:ad"])


def test_only_tasks_are_suggested() -> None:
    """Not a class of another kind that has a nearer name."""
    assert not hasattr(errands, "Brokn") and isinstance(errands.Broken, type)
    with pytest.raises(ImportError) as info:
        mapping.Tasks([], [f"x={HERE}:Brokn"])
    assert "Broken" not in str(info.value)
