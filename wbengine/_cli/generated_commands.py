"""Commands of operations that are not loaded yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from wbengine._cli import collector
from wbengine._introspection import object_names
from wbengine.operations import _names

if TYPE_CHECKING:
    from wbengine._cli import base

__all__ = ["Generated", "commands_of"]


class Generated(NamedTuple):
    """The command of an operation of the table. Its help is read from the source."""

    operation: str

    @property
    def help(self) -> str:
        return _names.summary(self.operation)

    def load(self) -> base.Command:
        with collector.loading():
            create = object_names.load("wbengine._cli.operation_command:create")
            command: base.Command = create(self.operation)
        return command


def commands_of(subject: str) -> Mapping[str, Generated]:
    """Return the commands of the operations with this subject, by verb."""
    names = [name.partition(" ") for name in _names.names()]
    return {verb: Generated(f"{of} {verb}") for of, _, verb in names if of == subject}
