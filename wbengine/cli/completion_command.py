"""`wbengine completion`: what lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from wbengine.cli import base, context, output

__all__ = ["command"]


@base.command(
    "completion",
    help="""Print what lets a shell complete commands and options.

    \b
    bash:  eval "$(wbengine completion bash)"      in ~/.bashrc
    zsh:   eval "$(wbengine completion zsh)"       in ~/.zshrc
    fish:  wbengine completion fish > ~/.config/fish/completions/wbengine.fish
    """,
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
def command(context: context.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    script = kind(root.command, {}, "wbengine", "_WBENGINE_COMPLETE").source()
    output.write(f"{script}\n")
