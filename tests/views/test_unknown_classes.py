"""Views of flows whose values have classes that this process does not know."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import pathlib

import pytest

from wbengine import engines, exceptions, operations, task
from wbengine.persistence import backends
from wbengine.types._encoding import classes
from wbengine.views import flow_status
from wbengine.views.redaction import Redactor


@dataclasses.dataclass
class Card:
    owner: str
    password: str


class Color(enum.Enum):
    RED = 1


@task.workflow
def issue(steps, card):
    steps.publish("card", card)
    steps.publish("color", Color.RED)
    return card


def test_values_of_unknown_classes_are_shown(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in (Card, Color):
        classes.allow(cls)
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engine = engines.load(issue, {"card": Card("ann", "canary-5")}, backend=backend)
        engine.run()
        uuid = engine.storage.flow_uuid
        assert operations.published(backend, uuid)["color"] is Color.RED
        for cls in (Card, Color):
            monkeypatch.delitem(classes.ALLOWED, f"{__name__}.{cls.__name__}")
        with contextlib.closing(backend.get_connection()) as connection:
            with pytest.raises(exceptions.CorruptRecord, match="is not known in this process"):
                connection.get_flow_details(uuid)
            view = flow_status.read(connection, uuid, redactor=Redactor(show_values=True))
        (atom,) = view.atoms
        assert "ann" in str(atom.result) and "canary" not in str(view)
        assert operations.published(backend, uuid) == {
            "card": {"owner": "ann", "password": "canary-5"},
            "color": f"{__name__}.Color.RED",
        }
