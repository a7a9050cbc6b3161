"""What the tasks of the census write, and that their reverts leave nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from wbengine.examples.census import flow, measuring, sources, tasks
from wbengine.types.failure import Failure


@pytest.fixture
def failure():
    return Failure.from_exception(RuntimeError("no"))


def test_the_folder_is_made_with_what_is_above_it_and_only_that_is_undone(tmp_path, failure):
    task = tasks.MakeFolder("make")
    (tmp_path / "there").mkdir()
    result = task.execute(out=str(tmp_path / "there" / "a" / "b"))

    assert (tmp_path / "there" / "a" / "b" / "partial").is_dir()
    task.revert(result=failure)
    assert (tmp_path / "there" / "a" / "b" / "partial").is_dir()
    task.revert(result=result)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_folder_that_cannot_be_made_leaves_none(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "partial").write_text("a file is in the way")
    long = tmp_path / "new" / ("x" * 300)

    for out in (tmp_path / "a" / "b", long):
        with pytest.raises(OSError):
            tasks.MakeFolder("make").execute(out=str(out))
    assert not (tmp_path / "new").exists()


def test_others_files_keep_the_folder(tmp_path):
    task = tasks.MakeFolder("make")
    result = task.execute(out=str(tmp_path / "a"))
    (tmp_path / "a" / "theirs").write_text("")

    task.revert(result=result)

    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "theirs"]


def test_measuring_leaves_a_partial_file_until_reverted(tmp_path):
    (tmp_path / "a.py").write_text("def f(): pass\n")
    folder = {"partial": str(tmp_path), "made": []}
    task = tasks.MeasureGroup("measure")

    counts = task.execute(folder, str(tmp_path), "g", ["a.py", "gone.py"])

    assert counts["files"] == 2
    assert counts["unparsed"] == [
        {"path": "gone.py", "why": "FileNotFoundError: No such file or directory"}
    ]
    assert json.loads((tmp_path / "g.json").read_text()) == counts
    for _ in range(2):  # a revert may come twice
        task.revert(folder=folder, group="g")
        assert not (tmp_path / "g.json").exists()


def test_asked_to_fail_it_fails_after_it_wrote(tmp_path):
    folder = {"partial": str(tmp_path), "made": []}
    with pytest.raises(RuntimeError, match="g fails because --fail asked for it"):
        tasks.MeasureGroup("measure").execute(folder, str(tmp_path), "g", [], fail=True)
    assert (tmp_path / "g.json").exists()


def test_the_report_appears_whole_and_a_failed_one_keeps_the_old(tmp_path, failure):
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "g.json").write_text("{}")
    (tmp_path / "census.json").write_text("old")
    folder = {"partial": str(partial), "made": []}
    counts = {**measuring.nothing(), "files": 1}
    task = tasks.WriteReport("write", requires=["c"], revert_requires=["folder"])

    (partial / "census.json").write_text("a draft of one that failed")
    task.revert(result=failure, folder=folder)
    assert (tmp_path / "census.json").read_text() == "old"
    assert not (partial / "census.json").exists()

    result = task.execute(folder, "title", ["g"], counts, {"m": "c"}, c=counts)
    assert [path.name for path in tmp_path.iterdir()] == ["census.json"]
    census = json.loads((tmp_path / "census.json").read_text())
    assert census == {"source": "title", "total": counts, "modules": [{"name": "m", **counts}]}

    task.revert(result=result, folder=folder)
    assert list(tmp_path.iterdir()) == []


def test_tasks_tell_where_they_begin():
    told = []
    task = tasks.AddUp("add", requires=["a"])
    task.notifier.register(tasks.BEGUN, lambda event, details: told.append((event, details)))

    task.pre_execute()

    assert [event for event, _ in told] == ["begun"]
    assert isinstance(told[0][1]["pid"], int)


def test_the_flow_starts_the_biggest_first_and_fails_one_group_only(tmp_path):
    kept = tuple(sources.SourceFile(f"big/{number}.py", 10) for number in range(120))
    tree = sources.Tree("t", tmp_path, {"big": kept, "small": (sources.SourceFile("s.py", 5),)})
    groups = sources.groups(tree)

    made = flow.build(groups, fail="big")

    nodes = {node.name: node for node, _ in made.iter_nodes()}
    assert sorted(nodes) == sorted(step.name for step in flow.steps(groups))
    assert nodes["measure big.1"].priority > nodes["measure small"].priority
    failing = [name for name, node in nodes.items() if (node.inject or {}).get("fail")]
    assert failing == ["measure big.1"]
    assert made.requires == {"root", "title", "out"}


def test_a_worker_imports_neither_storage_nor_graphs():
    code = f"import sys; import {tasks.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    heavy = ("networkx", "rich", "wbengine.storage", "wbengine.engines", "wbengine.patterns")
    assert not [name for name in loaded if name.startswith(heavy)]
