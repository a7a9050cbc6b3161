"""What is in a picture: boxes, the frames around them, arrows between them.

Few enough to be looked at: of a flow with too many atoms whole sub-flows become one box, and long
rows of members one box for each part of the row, with counts in place of what is in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.types import outline as outlines
from wbengine.views import structure
from wbengine.views.flow import FlowView
from wbengine.views.structure import GROUP, NodeView

__all__ = ["BOXES", "MAX_ATOMS", "Scene", "make"]

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
class Scene:
    """What is shown, by its position in the outline (of a group, that of its first member).

    `members` are those of frames: of flows that are shown with what is in them; all other `items`
    are boxes.  Arrows lead between any of them.  `retries` are those of frames that have one.
    """

    root: int
    items: dict[int, NodeView] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)
    retries: dict[int, int] = field(default_factory=dict)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    #: Whether something is not shown on its own.
    collapsed: bool = False

    @property
    def name(self) -> str:
        return self.items[self.root].name

    def walk(self) -> Iterator[tuple[int, NodeView | None]]:
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
            yield depth, self.items[node]
            if node in self.members:
                depth += 1
                pending += [None, *reversed(self.members[node])]

    def parents(self) -> dict[int, int]:
        """Member -> the frame that it is in."""
        return {node: frame for frame, members in self.members.items() for node in members}

    def before(self) -> dict[int, list[int]]:
        """Member -> the members of the same frame that arrows lead to it from."""
        parents, found = self.parents(), dict[int, list[int]]()
        for source, target in self.arrows:
            if parents.get(source) == parents.get(target):
                found.setdefault(target, []).append(source)
        return found

    def levels(self) -> dict[int, int]:
        """Member -> how many members of its frame come one after the other before it."""
        before, found = self.before(), {self.root: 0}
        for members in self.members.values():
            for member in members:
                others = before.get(member, ())
                found[member] = max((found.get(other, -1) + 1 for other in others), default=0)
        return found

    def direction(self) -> str:
        """'TB' or 'LR': the one in which more of the picture is seen at once."""
        levels = self.levels()

        def size(across: bool) -> float:
            sizes = dict.fromkeys(self.items, (210.0, 80.0))
            for node in sorted(self.members, reverse=True):
                rows: dict[int, list[tuple[float, float]]] = {}
                for member in self.members[node]:
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
    tree = structure.grow(outline, ()) if view is None else view.tree
    part = next(each for each in tree.walk() if each.node == root)
    making = _Making(part, boxes, frozenset(opened), frozenset(closed))
    making.place(is_small=part.size <= max_atoms)
    making.connect(outline.edges)
    return making.scene


class _Making:
    def __init__(
        self, root: NodeView, boxes: int, wanted: frozenset[int], closed: frozenset[int]
    ) -> None:
        self.scene = Scene(root.node)
        self._root = root
        self._boxes = boxes
        #: What somebody opened, and closed.
        self._wanted = wanted
        self._closed = closed
        #: So many more may be shown of the parts of long rows that were opened.
        self._room = MAX_ATOMS
        #: Node -> the node of the item that shows it.
        self._shown: dict[int, int] = {}

    def place(self, is_small: bool) -> None:
        """Find the boxes and frames; of what `is_small` all is shown but what was closed."""
        scene = self.scene
        opened = None if is_small else self._opened() | self._within_bounds()
        pending = [self._root]
        while pending:
            item = pending.pop()
            scene.items[item.node] = item
            self._shown[item.node] = item.node
            if not item.children:
                continue
            if item is not self._root and not self._is_open(item, opened):
                scene.collapsed = True
                self._shown.update((each.node, item.node) for each in item.walk())
                continue
            row: Sequence[NodeView] = item.children
            for each in row:
                if each.kind == outlines.RETRY:
                    scene.retries[item.node] = each.node
            if opened is not None and len(row) > self._boxes:
                row = [_group(part) for part in self._parts(row)]
            scene.members[item.node] = [each.node for each in row]
            pending += reversed(row)
        scene.items = dict(sorted(scene.items.items()))
        scene.members = dict(sorted(scene.members.items()))

    def _is_open(self, item: NodeView, opened: Collection[int] | None) -> bool:
        if item.kind == GROUP or item.node in self._closed:
            return False
        return opened is None or item.node in opened

    def _opened(self) -> set[int]:
        """The flows whose members are shown: level by level, as long as there is room for all."""
        found: set[int] = set()
        level, room = [self._root], self._boxes
        while level:
            shown = [len(flow.children) for flow in level]
            room -= sum(many if many <= self._boxes else _GROUPS for many in shown)
            if room < 0 and found:
                break
            found.update(flow.node for flow in level)
            level = [
                member
                for flow, many in zip(level, shown, strict=True)
                if many <= self._boxes
                for member in flow.children
                if not member.is_atom
            ]
        return found

    def _within_bounds(self) -> set[int]:
        """The first of the wanted flows, as long as not too much is in them to be drawn."""
        found, room = set[int](), MAX_ATOMS
        wanted = (each for each in self._root.walk() if each.node in self._wanted)
        for flow in sorted(wanted, key=lambda each: each.node):
            room -= len(flow.children)
            if room < 0:
                break
            found.add(flow.node)
        return found

    def _parts(self, row: Sequence[NodeView]) -> Iterator[Sequence[NodeView]]:
        """A row that is too long in parts; those whose first member is wanted, in smaller ones: in
        the end, one by one.
        """
        pending = self._cut(row)
        while pending:
            part = pending.pop()
            if len(part) > 1 and part[0].node in self._wanted and self._room > 0:
                self._room -= len(part) if len(part) <= self._boxes else _GROUPS
                pending += self._cut(part)
            else:
                yield part

    def _cut(self, row: Sequence[NodeView]) -> list[Sequence[NodeView]]:
        """The last part first."""
        length = 1 if len(row) <= self._boxes else -(-len(row) // _GROUPS)
        return [row[start : start + length] for start in range(0, len(row), length)][::-1]

    def connect(self, edges: Sequence[tuple[int, int]]) -> None:
        """Find the arrows: of what is not shown, those of the box that stands for it."""
        found: dict[tuple[int, int], None] = {}
        shown, scene = self._shown, self.scene
        for source, target in edges:
            a, b = shown.get(source), shown.get(target)
            if a is not None and b is not None and a != b:
                found[a, b] = None
        reached = {target for _, target in found}
        for frame, members in scene.members.items():
            retry = scene.retries.get(frame)
            if retry is None:
                continue
            for member in members:
                if member not in (retry, shown[retry]) and member not in reached:
                    found[shown[retry], member] = None
        scene.arrows = list(found)


def _group(part: Sequence[NodeView]) -> NodeView:
    """What stands for a part of a row."""
    if len(part) == 1:
        return part[0]
    counts = structure.summed(member.atom_counts for member in part)
    name, state = f"{part[0].name} … {part[-1].name}", structure.state_of(counts)
    return NodeView(part[0].node, name, GROUP, state, counts, counts, children=list(part))
