"""`wbengine completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from wbengine._cli import base, context, output, params

__all__ = ["command"]


@base.command(
    "completion",
    help="""Print the completion script for a shell.

    For bash and zsh, add the line eval "$(wbengine completion bash)" (or zsh) to ~/.bashrc or
    ~/.zshrc.

    \b
    Example:
      wbengine completion fish > ~/.config/fish/completions/wbengine.fish
    """,
)
@click.argument("shell", metavar="bash|zsh|fish", type=params.Choice(("bash", "zsh", "fish")))
def command(context: context.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    script = kind(root.command, {}, "wbengine", "_WBENGINE_COMPLETE").source()
    output.write(f"{script}\n")
