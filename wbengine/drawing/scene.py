"""What is in a picture: boxes, the frames around them, arrows between them.

Few enough to be looked at: of a flow with too many atoms whole sub-flows become one box, and long
rows of members one box for each part of the row, with counts in place of what is in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine import states
from wbengine.types import outline as outlines
from wbengine.views import structure
from wbengine.views.atoms import AtomView
from wbengine.views.flow import FlowView
from wbengine.views.structure import Structure

__all__ = ["BOXES", "GROUP", "MAX_ATOMS", "Box", "Frame", "Scene", "make"]

#: The kind of a box that stands for several members of one flow.
GROUP: Final = "group"
#: Flows of more atoms are collapsed, to about so many boxes.
MAX_ATOMS: Final = 2000
BOXES: Final = 400
#: What is seen of a picture at once, in pixels.
_WINDOW: Final = (1100.0, 1300.0)
#: So many arrows are followed at most, to find those that say nothing.
_FOLLOWED: Final = 300_000
#: A row of members that is too long is shown as so many groups.
_GROUPS: Final = 48


@dataclass(slots=True)
class Box:
    """An atom, or what stands for several: a collapsed flow, a part of a row of members.

    `node` is its position in the outline (of a group, that of its first member); `counts` are of
    the atoms in it.  `size` is how many there are.
    """

    node: int
    kind: str
    name: str
    parent: int
    state: str
    counts: Counter[str]
    size: int = 1
    atom: AtomView | None = None
    task: str | None = None
    notes: str | None = None

    @property
    def collapsed(self) -> bool:
        return self.kind in (outlines.FLOW, GROUP)


@dataclass(slots=True)
class Frame:
    """A flow that is shown with what is in it; `retry` is the node of its retry, or -1."""

    node: int
    name: str
    parent: int
    state: str
    counts: Counter[str]
    retry: int = -1
    notes: str | None = None
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """Boxes and frames by node, in the order of the outline; arrows between any of them."""

    root: int
    boxes: dict[int, Box]
    frames: dict[int, Frame]
    arrows: list[tuple[int, int]]
    #: Whether something is not shown on its own.
    collapsed: bool = False

    @property
    def name(self) -> str:
        return self.frames[self.root].name if self.frames else self.boxes[self.root].name

    def walk(self) -> Iterator[tuple[int, Box | Frame | None]]:
        """How deep inside, and what: what is around comes before what is in it, and None where a
        frame ends.
        """
        # A stack of what is open, for flows may be nested deeper than Python recurses.
        pending: list[int | None] = [self.root]
        depth = 0
        while pending:
            node = pending.pop()
            if node is None:
                depth -= 1
                yield depth, None
                continue
            item = self.item(node)
            yield depth, item
            if isinstance(item, Frame):
                depth += 1
                pending += [None, *reversed(item.members)]

    def item(self, node: int) -> Box | Frame:
        return self.boxes[node] if node in self.boxes else self.frames[node]

    def before(self) -> dict[int, list[int]]:
        """Member -> the members of the same frame that arrows lead to it from."""
        found: dict[int, list[int]] = {}
        for source, target in self.arrows:
            if self.item(source).parent == self.item(target).parent:
                found.setdefault(target, []).append(source)
        return found

    def levels(self) -> dict[int, int]:
        """Member -> how many members of its frame come one after the other before it."""
        before, found = self.before(), {self.root: 0}
        for frame in self.frames.values():
            for member in frame.members:
                others = before.get(member, ())
                found[member] = max((found.get(other, -1) + 1 for other in others), default=0)
        return found

    def direction(self) -> str:
        """'TB' or 'LR': the one in which more of the picture is seen at once."""
        levels = self.levels()

        def size(across: bool) -> float:
            sizes = dict.fromkeys(self.boxes, (210.0, 80.0))
            for node in sorted(self.frames, reverse=True):
                rows: dict[int, list[tuple[float, float]]] = {}
                for member in self.frames[node].members:
                    rows.setdefault(levels[member], []).append(sizes[member])
                along, wide = (0, 1) if across else (1, 0)
                length = sum(max(each[along] for each in row) for row in rows.values())
                breadth = max(sum(each[wide] for each in row) for row in rows.values())
                sizes[node] = (length, breadth) if across else (breadth, length)
            return max(sizes[self.root][0] / _WINDOW[0], sizes[self.root][1] / _WINDOW[1])

        return "LR" if 1.2 * size(True) < size(False) else "TB"

    def thin(self) -> None:
        """Take out arrows that say nothing, since a longer way leads from one to the other as well;
        as far as that does not take too long.
        """
        before, levels, room = self.before(), self.levels(), _FOLLOWED
        idle: set[tuple[int, int]] = set()
        for target, sources in before.items():
            lowest = min(levels[source] for source in sources)
            if len(sources) < 2 or lowest == levels[target] - 1:
                continue  # all of them come right before it
            pending, behind = list(sources), set[int]()
            while pending and room > 0:
                for other in before.get(pending.pop(), ()):
                    room -= 1
                    if other not in behind and levels[other] >= lowest:
                        behind.add(other)
                        pending.append(other)
            idle.update((source, target) for source in sources if source in behind)
        self.arrows = [arrow for arrow in self.arrows if arrow not in idle]


def make(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    root: int = 0,
    max_atoms: int = MAX_ATOMS,
    boxes: int = BOXES,
    opened: Collection[int] = (),
    closed: Collection[int] = (),
) -> Scene:
    """The scene of a flow, or of the part of it at `root`.

    `view` says the states; it has to be of this outline.  With more than `max_atoms` atoms, parts
    are collapsed, to about so many `boxes`; how, depends on the structure alone, so that a picture
    does not jump.  The flows at the nodes `opened` are not, those `closed` are.
    """
    making = _Making(outline, view, root, max_atoms, boxes)
    return making.scene(frozenset(opened), frozenset(closed))


class _Making:
    def __init__(
        self,
        outline: outlines.Outline,
        view: FlowView | None,
        root: int,
        max_atoms: int,
        boxes: int,
    ) -> None:
        self._outline = outline
        self._structure = Structure(outline)
        self._atoms: Mapping[int, AtomView] = (
            {} if view is None else {atom.node: atom for atom in view.atoms}
        )
        self._root = root
        self._max_atoms = max_atoms
        self._boxes = boxes
        self._sizes, self._counts = self._sums()
        if view is not None and root == 0:
            self._state: str | None = view.state
        else:
            self._state = None
        #: So many more may be shown of the parts of long rows that were opened.
        self._room = MAX_ATOMS
        #: Node -> the node of the item that shows it.
        self._shown: dict[int, int] = {}

    def _sums(self) -> tuple[list[int], dict[int, Counter[str]]]:
        """How many atoms are in each node, and of flows in which states."""
        nodes = self._outline.nodes
        sizes = [0] * len(nodes)
        counts: dict[int, Counter[str]] = {
            number: Counter() for number, node in enumerate(nodes) if node.kind == outlines.FLOW
        }
        for number in range(len(nodes) - 1, -1, -1):
            kind, parent = nodes[number].kind, nodes[number].parent
            if kind != outlines.FLOW:
                sizes[number] = 1
            if parent is None:
                continue
            sizes[parent] += sizes[number]
            if kind != outlines.FLOW:
                counts[parent][self._state_of(number)] += 1
            else:
                counts[parent].update(counts[number])
        return sizes, counts

    def _state_of(self, node: int) -> str:
        atom = self._atoms.get(node)
        return states.PENDING if atom is None else atom.state

    def scene(self, also: Collection[int], closed: Collection[int]) -> Scene:
        scene = Scene(self._root, {}, {}, [])
        if self._outline.nodes[self._root].kind != outlines.FLOW:
            scene.boxes[self._root] = self._box(self._root, -1)
            return scene
        small = self._sizes[self._root] <= self._max_atoms
        opened = None if small else self._opened() | self._within_bounds(also)
        pending = [(self._root, -1)]
        while pending:
            node, parent = pending.pop()
            self._shown[node] = node
            if self._outline.nodes[node].kind != outlines.FLOW:
                scene.boxes[node] = self._box(node, parent)
                continue
            members = self._structure.children[node]
            is_open = opened is None or node in opened
            if not members or (node != self._root and (node in closed or not is_open)):
                scene.boxes[node] = self._box(node, parent)
                scene.collapsed = scene.collapsed or bool(members)
                self._hide(members, node)
                continue
            frame = scene.frames[node] = self._frame(node, parent)
            if opened is not None and len(members) > self._boxes:
                scene.collapsed = True
                for part in self._parts(members, frozenset(also)):
                    if len(part) == 1:
                        pending.append((part[0], node))
                    else:
                        scene.boxes[part[0]] = self._group(node, part)
                    frame.members.append(part[0])
                continue
            frame.members += members
            pending += [(member, node) for member in reversed(members)]
        scene.boxes = dict(sorted(scene.boxes.items()))
        scene.frames = dict(sorted(scene.frames.items()))
        scene.arrows = self._arrows(scene)
        return scene

    def _opened(self) -> set[int]:
        """The flows whose members are shown: level by level, as long as there is room for all."""
        found: set[int] = set()
        level, room = [self._root], self._boxes
        children = self._structure.children
        while level:
            shown = [len(children[flow]) for flow in level]
            room -= sum(many if many <= self._boxes else _GROUPS for many in shown)
            if room < 0 and found:
                break
            found.update(level)
            level = [
                member
                for flow, many in zip(level, shown, strict=True)
                if many <= self._boxes
                for member in children[flow]
                if self._structure.is_flow(member)
            ]
        return found

    def _within_bounds(self, wanted: Collection[int]) -> set[int]:
        """The first of these flows, as long as not too much is in them to be drawn."""
        found, room = set[int](), MAX_ATOMS
        for node in sorted(wanted):
            room -= len(self._structure.children[node])
            if room < 0:
                break
            found.add(node)
        return found

    def _hide(self, nodes: Sequence[int], behind: int) -> None:
        """These, and what is in them, are shown by `behind`."""
        pending = list(nodes)
        while pending:
            node = pending.pop()
            self._shown[node] = behind
            pending += self._structure.children[node]

    def _box(self, node: int, parent: int) -> Box:
        name, kind, _, task, notes, *_ = self._outline.nodes[node]
        atom = self._atoms.get(node)
        if kind == outlines.FLOW:
            counts = self._counts[node]
            state = structure.state_of(counts)
            return Box(node, kind, name, parent, state, counts, self._sizes[node], notes=notes)
        state = self._state_of(node)
        kind = kind if atom is None else atom.kind
        return Box(node, kind, name, parent, state, Counter((state,)), 1, atom, task, notes)

    def _frame(self, node: int, parent: int) -> Frame:
        counts = self._counts[node]
        state = self._state if node == 0 and self._state else structure.state_of(counts)
        told = self._outline.nodes[node]
        return Frame(
            node, told.name, parent, state, counts, self._structure.retry[node], told.notes
        )

    def _parts(self, members: Sequence[int], opened: Collection[int]) -> Iterator[Sequence[int]]:
        """A row that is too long in parts; those whose first member is `opened`, in smaller ones:
        in the end, one by one.
        """
        pending = self._cut(members)
        while pending:
            part = pending.pop()
            if len(part) > 1 and part[0] in opened and self._room > 0:
                self._room -= len(part) if len(part) <= self._boxes else _GROUPS
                pending += self._cut(part)
            else:
                yield part

    def _cut(self, row: Sequence[int]) -> list[Sequence[int]]:
        """The last part first."""
        length = 1 if len(row) <= self._boxes else -(-len(row) // _GROUPS)
        return [row[start : start + length] for start in range(0, len(row), length)][::-1]

    def _group(self, flow: int, part: Sequence[int]) -> Box:
        """What stands for a part of a row."""
        counts: Counter[str] = Counter()
        for member in part:
            if self._structure.is_flow(member):
                counts.update(self._counts[member])
            else:
                counts[self._state_of(member)] += 1
        self._hide(part, part[0])
        first, last = self._structure.name(part[0]), self._structure.name(part[-1])
        size = sum(self._sizes[member] for member in part)
        state = structure.state_of(counts)
        return Box(part[0], GROUP, f"{first} … {last}", flow, state, counts, size)

    def _arrows(self, scene: Scene) -> list[tuple[int, int]]:
        found: dict[tuple[int, int], None] = {}
        shown = self._shown
        for source, target in self._outline.edges:
            a, b = shown.get(source), shown.get(target)
            if a is not None and b is not None and a != b:
                found[a, b] = None
        reached = {target for _, target in found}
        for frame in scene.frames.values():
            if frame.retry < 0:
                continue
            for member in frame.members:
                if member != frame.retry and member not in reached:
                    found[shown[frame.retry], member] = None
        return [pair for pair in found if pair[0] != pair[1]]
