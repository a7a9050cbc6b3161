"""The stored records of a flow as plain data that can be compared and sent to another process."""

from __future__ import annotations

import json
from typing import Any

from tests.crashing import audit
from tests.seams.stores import row
from wbengine.persistence import base, models

#: One flow: its state, and its atoms with their items, by name.
Snapshot = dict[str, Any]


def take(connection: base.Connection, flow: str) -> Snapshot:
    """Return the snapshot of the flow with this uuid."""
    return of(connection.get_flow_details(flow))


def take_whole(connection: base.Connection, flow: str) -> Snapshot:
    """Return the snapshot of a flow including its outline."""
    detail, outline = connection.get_flow_details(flow), connection.get_outline(flow)
    if detail.outlined is not None:
        assert outline is not None and outline.digest == detail.outlined, "its outline is lost"
    return {**of(detail), "drawn": outline and sorted(node.name for node in outline.nodes)}


def of(detail: models.FlowDetail) -> Snapshot:
    return {"state": detail.state, "atoms": {atom.name: _atom(atom) for atom in detail}}


def _atom(atom: models.AtomDetail) -> dict[str, Any]:
    content: dict[str, Any] = {"row": row(atom)}
    content["items"] = [row(item) for item in atom.items or ()]
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def saved(snapshot: Snapshot) -> set[str]:
    """Return the effects whose results are stored."""
    return audit.effects_in(json.dumps(snapshot))


def outline(snapshot: Snapshot, *, timeless: bool = False) -> dict[str, Any]:
    """Return the part that must not depend on kills: states and results of all atoms.

    :param timeless: ignore the wave in which an atom ended, and the attempts of workflows but the
        last one.
    """
    notes = _step_notes(snapshot)
    last: dict[str, int] = {}
    for note in notes.values():
        last[note["workflow"]] = max(note["attempt"], last.get(note["workflow"], 0))
    content: dict[str, Any] = {"": snapshot["state"], " as it is drawn": snapshot.get("drawn")}
    for name, atom in snapshot["atoms"].items():
        row = atom["row"]
        if row["name"].startswith("_"):
            continue  # the injected values
        if timeless and name in notes and notes[name]["attempt"] < last[notes[name]["workflow"]]:
            continue
        content[name] = {
            "state": row["state"],
            "results": row["results"] if "waves" not in name and "rounds" not in name else None,
            "failure": row["failure"] and audit.effects_in(str(row["failure"])),
            "reverted": row["revert_results"],
            "items": [
                {key: item[key] for key in ("index", "state", "value", "results", "revert_results")}
                for item in atom["items"]
            ],
        }
    if timeless:
        content = json.loads(audit.without_waves(json.dumps(content, default=sorted)))
    return content


def _step_notes(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Return the notes of the steps of workflows, by name of the step."""
    rows = {name: atom["row"] for name, atom in snapshot["atoms"].items()}
    return {n: row["meta"][models.STEP] for n, row in rows.items() if models.STEP in row["meta"]}
