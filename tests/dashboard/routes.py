"""All URLs of the dashboard."""

from __future__ import annotations

from tests.dashboard import story

PAGES = (
    "/", "/workers", "/queues", "/metrics", "/api/v1/flows", "/api/v1/workers", "/api/v1/queues",
    "/api/v1/requests", "/queues/dead", "/stream/flows", "/stream/workers", "/schedules",
    "/api/v1/schedules", "/pauses", "/limits", "/api/v1/limits", "/jobs", "/api/v1/jobs",
    "/api/v1/status", "/api/v1/pauses", "/api/v1/jobs/default/keys",
)  # fmt: skip


OF_FLOW = (
    "", "/graph", "/timeline", "/events", "/failures", "/stream",
)  # fmt: skip


def everything(kept: story.Kept) -> list[str]:
    uuid = kept.uuids["leaking"]
    flow = [f"/flows/{uuid}{page}" for page in OF_FLOW]
    api = [f"/api/v1/flows/{uuid}{page}" for page in ("", "/events", "/logs", "/values", "/export")]
    return [*PAGES, *flow, *api, f"/flows/{uuid}/atoms/{uuid}", "/nothing/here"]
