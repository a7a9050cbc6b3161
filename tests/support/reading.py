"""Reads and writes of single flows in a store."""

from __future__ import annotations

import contextlib

from wbengine.persistence import base, models


def read_flow(store: base.Backend, uuid: str, *, lazy: bool = False) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid, lazy=lazy)


def read_atoms(store: base.Backend, uuid: str) -> dict[str, models.AtomDetail]:
    """Return the records of the atoms of a flow by name."""
    with contextlib.closing(store.get_connection()) as connection:
        return {atom.name: atom for atom in connection.get_atoms_for_flow(uuid)}


def flow_uuids(store: base.Backend, limit: int = 1000, **conditions: object) -> list[str]:
    with contextlib.closing(store.get_connection()) as connection:
        return [row.uuid for row in connection.list_flows(limit=limit, **conditions).flows]


def save_flow(store: base.Backend, flow: models.FlowDetail) -> None:
    """Save a new flow in a logbook of its own."""
    book = models.LogBook("b")
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
