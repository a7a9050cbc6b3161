"""Entities."""

from __future__ import annotations

from wbengine.types.entity import Entity


def test_entity_exposes_its_fields():
    entity = Entity("conductor", "box.1", {"pid": 7})
    assert (entity.kind, entity.name, entity.metadata) == ("conductor", "box.1", {"pid": 7})
    assert entity.to_dict() == {"kind": "conductor", "name": "box.1", "metadata": {"pid": 7}}
    assert "box.1" in repr(entity)
