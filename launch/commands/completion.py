"""``windrow completion``: print a script that lets a shell complete windrow's arguments.

Print a script that lets a shell complete commands, options, their choices and recipes (*.toml).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow completion bash > ~/.local/share/bash-completion/completions/windrow
  windrow completion zsh > ~/.zfunc/_windrow

zsh looks into ~/.zfunc where ~/.zshrc says so: fpath+=~/.zfunc; autoload -U compinit; compinit. Start a new shell then.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    import shtab

    from windrow.launch.cli import build_parser

    parser = build_parser()
    for argument in _arguments(parser):
        if argument.type is Path:
            of_toml = argument.dest in ("recipe", "describe")
            # What shtab looks for:
            argument.complete = shtab.glob("*.toml") if of_toml else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    # ruff: noqa: SLF001 - argparse has no public lists of arguments and of what is said of each command
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action._choices_actions:
                subparser = action.choices[command.dest]
                subparser.description = command.help  # one line, for zsh
                yield from _arguments(subparser)
