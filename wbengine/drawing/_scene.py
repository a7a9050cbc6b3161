"""The content of a drawing: boxes, frames around them, arrows between them.

If a flow has too many atoms, nested flows become one box each, and a long sequence of members
becomes groups with one box each. These boxes show counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.drawing import _step_boxes
from wbengine.types import _outline as outlines
from wbengine.views import _structure
from wbengine.views._structure import GROUP, NodeView
from wbengine.views.flow_status import FlowView

__all__ = ["MAX_BOXES", "MAX_ATOMS", "Scene", "make"]

#: Flows with more atoms are collapsed to about `MAX_BOXES` boxes.
MAX_ATOMS: Final = 2000
MAX_BOXES: Final = 400
#: Assumed size of the visible part of a drawing, in pixels.
_WINDOW_PIXELS: Final = (1100.0, 1300.0)
#: Maximum number of arrows that `remove_redundant_arrows` follows.
_MAX_FOLLOWED_ARROWS: Final = 300_000
#: Number of groups that a long sequence of members is divided into.
_GROUPS_PER_SEQUENCE: Final = 48


@dataclass(slots=True)
class Scene:
    """The shown nodes by their positions in the outline.

    A group has the position of its first member. Arrows connect boxes and frames.

    :ivar members: frame -> its members. Frames are flows and workflows whose members or steps are
        shown; all other `items` are boxes.
    :ivar retries: frame -> its retry controller.
    """

    root: int
    items: dict[int, NodeView] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)
    retries: dict[int, int] = field(default_factory=dict)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    #: Whether a box stands for several atoms.
    collapsed: bool = False

    @property
    def name(self) -> str:
        return self.items[self.root].name

    def walk(self) -> Iterator[tuple[int, NodeView | None]]:
        """Yield the depth and each item, frames before their members, and None at a frame's end."""
        # This uses a stack because flows may be nested deeper than Python's recursion limit.
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
        """Return member -> its frame."""
        return {node: frame for frame, members in self.members.items() for node in members}

    def before(self) -> dict[int, list[int]]:
        """Return member -> its direct predecessors in the same frame."""
        parents, predecessors = self.parents(), dict[int, list[int]]()
        for source, target in self.arrows:
            if parents.get(source) == parents.get(target):
                predecessors.setdefault(target, []).append(source)
        return predecessors

    def levels(self) -> dict[int, int]:
        """Return member -> length of the longest chain of predecessors in its frame."""
        before, levels = self.before(), {self.root: 0}
        for members in self.members.values():
            for member in members:
                predecessors = before.get(member, ())
                levels[member] = max(
                    (levels.get(predecessor, -1) + 1 for predecessor in predecessors), default=0
                )
        return levels

    def direction(self) -> str:
        """Return 'TB' or 'LR': the direction in which more of the drawing is visible at once."""
        levels = self.levels()

        def size(across: bool) -> float:
            sizes = dict.fromkeys(self.items, (210.0, 80.0))
            for node in sorted(self.members, reverse=True):
                rows: dict[int, list[tuple[float, float]]] = {}
                for member in self.members[node]:
                    rows.setdefault(levels[member], []).append(sizes[member])
                length_axis, breadth_axis = (0, 1) if across else (1, 0)
                length = sum(
                    max(box_size[length_axis] for box_size in row) for row in rows.values()
                )
                breadth = max(
                    sum(box_size[breadth_axis] for box_size in row) for row in rows.values()
                )
                sizes[node] = (length, breadth) if across else (breadth, length)
            return max(
                sizes[self.root][0] / _WINDOW_PIXELS[0], sizes[self.root][1] / _WINDOW_PIXELS[1]
            )

        return "LR" if 1.2 * size(True) < size(False) else "TB"

    def remove_redundant_arrows(self) -> None:
        """Remove arrows between nodes that a longer path connects. The effort is limited."""
        before, levels, steps_left = self.before(), self.levels(), _MAX_FOLLOWED_ARROWS
        redundant: set[tuple[int, int]] = set()
        for target, sources in before.items():
            lowest = min(levels[source] for source in sources)
            if len(sources) < 2 or lowest == levels[target] - 1:
                continue  # No source can be reached through another one.
            pending, reached = list(sources), set[int]()
            while pending and steps_left > 0:
                for predecessor in before.get(pending.pop(), ()):
                    steps_left -= 1
                    if predecessor not in reached and levels[predecessor] >= lowest:
                        reached.add(predecessor)
                        pending.append(predecessor)
            redundant.update((source, target) for source in sources if source in reached)
        self.arrows = [arrow for arrow in self.arrows if arrow not in redundant]


def make(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    root: int = 0,
    max_atoms: int = MAX_ATOMS,
    boxes: int = MAX_BOXES,
    opened: Collection[int] = (),
    closed: Collection[int] = (),
) -> Scene:
    """Return the scene of a flow, or of the part of it at `root`.

    :param view: the states; it must be a view of this outline.
    :param max_atoms: with more atoms, parts are collapsed to about `boxes` boxes. The choice
        depends only on the structure, so that it is stable while the flow runs.
    :param opened: positions of flows that are not collapsed.
    :param closed: positions of flows that are collapsed.
    """
    tree = _structure.build_tree(outline, ()) if view is None else view.tree
    step_arrows: Sequence[tuple[int, int]] = ()
    if view is not None and view.step_counts:
        tree, step_arrows = _step_boxes.with_steps(tree, len(outline.nodes))
    part = next(each for each in tree.walk() if each.node == root)
    builder = _SceneBuilder(part, boxes, frozenset(opened), frozenset(closed))
    builder.place(is_small=part.size <= max_atoms)
    builder.connect([*outline.edges, *step_arrows])
    return builder.scene


class _SceneBuilder:
    def __init__(
        self, root: NodeView, boxes: int, opened: frozenset[int], closed: frozenset[int]
    ) -> None:
        self.scene = Scene(root.node)
        self._root = root
        self._max_boxes = boxes
        #: Flows and groups that the user opened, flows that the user closed.
        self._user_opened = opened
        self._user_closed = closed
        #: Number of further members that opened groups may show.
        self._members_left = MAX_ATOMS
        #: Node -> the item that shows it.
        self._shown: dict[int, int] = {}

    def place(self, is_small: bool) -> None:
        """Determine boxes and frames. If `is_small`, only the closed flows are collapsed."""
        scene = self.scene
        opened = None if is_small else self._opened_by_level() | self._opened_by_user()
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
            if opened is not None and len(row) > self._max_boxes:
                row = [_group(part) for part in self._groups(row)]
            scene.members[item.node] = [each.node for each in row]
            pending += reversed(row)
        scene.items = dict(sorted(scene.items.items()))
        scene.members = dict(sorted(scene.members.items()))

    def _is_open(self, item: NodeView, opened: Collection[int] | None) -> bool:
        if item.kind == GROUP or item.node in self._user_closed:
            return False
        return opened is None or item.node in opened

    def _opened_by_level(self) -> set[int]:
        """Return the flows whose members are shown: level by level, while all of a level fit."""
        opened: set[int] = set()
        level, boxes_left = [self._root], self._max_boxes
        while level:
            member_counts = [len(flow.children) for flow in level]
            boxes_left -= sum(
                count if count <= self._max_boxes else _GROUPS_PER_SEQUENCE
                for count in member_counts
            )
            if boxes_left < 0 and opened:
                break
            opened.update(flow.node for flow in level)
            level = [
                member
                for flow, count in zip(level, member_counts, strict=True)
                if count <= self._max_boxes
                for member in flow.children
                if not member.is_atom
            ]
        return opened

    def _opened_by_user(self) -> set[int]:
        """Return the flows that the user opened, in order, until `MAX_ATOMS` members are drawn."""
        opened, members_left = set[int](), MAX_ATOMS
        candidates = (each for each in self._root.walk() if each.node in self._user_opened)
        for flow in sorted(candidates, key=lambda each: each.node):
            members_left -= len(flow.children)
            if members_left < 0:
                break
            opened.add(flow.node)
        return opened

    def _groups(self, row: Sequence[NodeView]) -> Iterator[Sequence[NodeView]]:
        """Divide a long sequence of members into groups.

        A group whose first member was opened is divided again, finally into single members.
        """
        pending = self._divide(row)
        while pending:
            part = pending.pop()
            if len(part) > 1 and part[0].node in self._user_opened and self._members_left > 0:
                self._members_left -= (
                    len(part) if len(part) <= self._max_boxes else _GROUPS_PER_SEQUENCE
                )
                pending += self._divide(part)
            else:
                yield part

    def _divide(self, row: Sequence[NodeView]) -> list[Sequence[NodeView]]:
        """Return the groups in reverse order."""
        length = 1 if len(row) <= self._max_boxes else -(-len(row) // _GROUPS_PER_SEQUENCE)
        return [row[start : start + length] for start in range(0, len(row), length)][::-1]

    def connect(self, edges: Sequence[tuple[int, int]]) -> None:
        """Determine the arrows. A box has the arrows of all nodes that it stands for."""
        arrows: dict[tuple[int, int], None] = {}
        shown, scene = self._shown, self.scene
        for source, target in edges:
            start, end = shown.get(source), shown.get(target)
            if start is not None and end is not None and start != end:
                arrows[start, end] = None
        reached = {target for _, target in arrows}
        for frame, members in scene.members.items():
            retry = scene.retries.get(frame)
            if retry is None:
                continue
            for member in members:
                if member not in (retry, shown[retry]) and member not in reached:
                    arrows[shown[retry], member] = None
        scene.arrows = list(arrows)


def _group(part: Sequence[NodeView]) -> NodeView:
    if len(part) == 1:
        return part[0]
    counts = _structure.sum_counts(member.atom_counts for member in part)
    name, state = f"{part[0].name} … {part[-1].name}", _structure.state_of(counts)
    return NodeView(part[0].node, name, GROUP, state, counts, counts, children=list(part))
