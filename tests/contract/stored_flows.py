"""Flows for tests of stores, and random writes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.support.amounts import amount
from wbengine import states
from wbengine.persistence import backends, base, models

from . import records

Connection = base.Connection


#: Without shrinking, which would exceed the time limit of a test; `differences` are short.
few = settings(
    max_examples=amount(8, 40),
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def make(*atoms: models.AtomDetail, name: str = "f") -> tuple[models.LogBook, models.FlowDetail]:
    """Return a logbook with one flow of these atoms."""
    book = models.LogBook("b")
    flow = models.FlowDetail(name)
    flow.add_all(atoms)
    book.add(flow)
    return book, flow


class Turns:
    """Identical random writes to two stores."""

    def __init__(self, draw: Any, ours: Connection) -> None:
        self.draw = draw
        self.model = backends.fetch("memory").get_connection()
        self.both = (ours, self.model)
        self.attempts = 2**41
        self.book, self.flow = make(models.TaskDetail("t"), models.RetryDetail("r"))
        for connection in self.both:
            connection.save_logbook(self.book)

    def step(self) -> None:
        self.attempts += self.draw(st.integers(1, 3))
        atoms = self.draw(st.lists(st.sampled_from(list(self.flow)), unique=True, max_size=3))
        for atom in atoms:
            records.fill(self.draw, atom)
            if isinstance(atom, models.TaskDetail):
                self.touch(atom)
        if self.draw(st.integers(0, 3)) == 0:
            atoms.append(self.draw(records.atoms()))
            self.flow.add(atoms[-1])
        if flow_row := self.draw(st.booleans()):
            self.flow.state = self.draw(st.sampled_from([None, *states.FLOW_STATES]))
            self.flow.meta = self.draw(st.dictionaries(st.text(max_size=2), records.values))
        how = self.draw(st.sampled_from(["turn", "turn", "flow", "atom", "book"]))
        changed = {a.uuid: list(a.items) for a in atoms if a.items is not None and len(a.items)}
        known = {atom.uuid for atom in self.model.get_atoms_for_flow(self.flow.uuid)}
        for connection in self.both:
            if how == "turn":
                connection.save_changes(self.flow, atoms, flow_row=flow_row, items=changed)
            elif how == "flow":
                connection.update_flow_details(self.flow)
            elif how == "atom":
                for atom in atoms:
                    if atom.uuid in known:
                        connection.update_atom_details(atom)
            else:
                connection.save_logbook(self.book)

    def touch(self, atom: models.TaskDetail) -> None:
        """Remove, replace or change the items of an atom."""
        change = self.draw(st.sampled_from(["none", "new", "item"]))
        if change == "none":
            atom.items = None
        elif change == "new" or atom.items is None:
            atom.attempt = self.attempts  # attempts only increase
            atom.items = models.Items(atom.attempt, self.draw(st.lists(records.values, max_size=3)))
        else:
            atom.attempt = atom.items.attempt
            for item in atom.items:
                item.put(states.SUCCESS, self.draw(records.values))
