"""Views for drawings, and hostile names."""

from __future__ import annotations

from tests.views import records
from wbengine import states
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow_status as flows

HOSTILE = "</text><script>alert(1)</script>\"'&<b>\\N \x00\x1b[31m\ud800 $(x) ]] #quot; %s\nend"


def view_of(order, **options):
    flow, outline = order
    return flows.view(flow, outline, now=records.T + 10, **options)


def hostile():
    outline = Outline(
        (
            OutlineNode(f"root {HOSTILE}", FLOW, None, None, HOSTILE),
            OutlineNode(f"in {HOSTILE}", FLOW, 0),
            OutlineNode(f"a {HOSTILE}", TASK, 1, HOSTILE, HOSTILE),
            OutlineNode(f"b {HOSTILE}", TASK, 1),
        ),
        ((2, 3),),
    )
    flow = records.models.FlowDetail(f"root {HOSTILE}")
    flow.enter(states.RUNNING, records.T)
    one = records.atom(flow, f"a {HOSTILE}", states.FAILURE, **records.ran(0, 1, HOSTILE))
    one.failure = records.failure(HOSTILE)
    records.atom(flow, f"b {HOSTILE}", 'NO SUCH"><b STATE')
    return flow, outline
