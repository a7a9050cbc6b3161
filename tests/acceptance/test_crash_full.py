"""A run on a full disk."""

from __future__ import annotations

import sys

import pytest

from tests.support import tools

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it kills by ways of Linux's own"),
]


@pytest.mark.slow
def test_flow_fails_on_full_disk_and_resumes_when_space_is_free() -> None:
    output = tools.run("crash", "full").stdout
    assert output.count(" 0 problems\n") == 2, output
