"""`flow tag`: change the tags of flows after their submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import ORDER, Command


@pytest.fixture
def uuid(wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/flows.db")
    return str(wbengine("flow", "run", ORDER, "--quiet").json["uuid"])


def tagged(wbengine: Command, tag: str) -> list[str]:
    return [flow["uuid"] for flow in wbengine("flow", "list", "--tag", tag, "--json").json["flows"]]


def test_tags_are_set_replaced_and_removed(wbengine: Command, uuid: str) -> None:
    answer = wbengine("flow", "tag", uuid[:8], "--set", "shop=paris", "--set", "note=a=b")
    assert (answer.code, answer.out) == (0, f"order {uuid}: note=a=b, shop=paris\n")
    assert tagged(wbengine, "note=a=b") == tagged(wbengine, "shop=paris") == [uuid]
    document = wbengine(
        "flow", "tag", uuid, "--set", "shop=rome", "--remove", "note", "--remove", "none", "--json"
    ).json
    assert document == {
        "schema": "wbengine/flow-tag/1", "uuid": uuid, "tags": {"shop": "rome"},
    }  # fmt: skip
    assert (tagged(wbengine, "note=a=b"), tagged(wbengine, "shop=rome")) == ([], [uuid])
    assert wbengine("flow", "tag", uuid, "--remove", "shop").out == f"order {uuid}: no tags\n"


def test_tags_of_the_submission_are_not_changed(wbengine: Command, uuid: str) -> None:
    other = wbengine("flow", "run", ORDER, "--quiet", "--tag", "team=billing").json["uuid"]
    answer = wbengine("flow", "tag", other, "--set", "team=sales")
    assert answer.code == 2 and "tag team was set at the submission" in answer.error
    assert tagged(wbengine, "team=billing") == [other]


def test_filters_select_by_tags_before_the_change(wbengine: Command, uuid: str) -> None:
    wbengine("flow", "tag", uuid, "--set", "shop=paris")
    words = ("flow", "tag", "--tag", "shop=paris", "--set", "shop=rome")
    assert "would tag" in wbengine(*words, "--dry-run").out
    assert tagged(wbengine, "shop=paris") == [uuid]
    assert wbengine(*words, "--yes").code == 0
    assert tagged(wbengine, "shop=rome") == [uuid]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "flow tag requires at least one of set, remove"),
        (("--set", "shop"), "must be a tag such as team=billing"),
        (("--set", "a b=c"), "the key of a tag must be"),
        (("--set", "a=\x1b[31m"), "printable characters"),
        (("--set", "a=\udcff"), "printable characters"),
        (("--set", "a=1", "--set", "a=2"), "must contain each key once"),
        (tuple(word for n in range(40) for word in ("--set", f"k{n}=v")), "at most"),
    ],
)
def test_invalid_tags_are_refused(
    words: tuple[str, ...], message: str, wbengine: Command, uuid: str
) -> None:
    answer = wbengine("flow", "tag", uuid, *words)
    assert (answer.code, answer.out) == (2, "") and message in answer.error
    assert wbengine("flow", "show", uuid, "--json").json["tags"] == {}
