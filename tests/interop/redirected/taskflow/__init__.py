"""Import wbengine's modules under TaskFlow's names, for programs with the parent folder on their
path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import wbengine


class Redirect(MetaPathFinder, Loader):
    """Finder of `wbengine.x` for `taskflow.x`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, submodule = name.partition(".")
        if package != "taskflow" or submodule.startswith("tests."):
            return None
        if submodule == "tests":  # TaskFlow's examples use helpers of its tests
            here = Path(__file__).parents[1]
            elsewhere = [each for each in sys.path if Path(each).resolve() != here]
            spec = PathFinder.find_spec("taskflow", elsewhere)
            return spec and PathFinder.find_spec(name, spec.submodule_search_locations)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module("wbengine" + spec.name.removeprefix("taskflow"))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it


sys.meta_path.insert(0, Redirect())
sys.modules[__name__] = wbengine
