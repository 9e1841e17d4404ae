"""Recipes that windrow init writes for files of a user's own: TOML whose comments say why each value was chosen."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["RecipeText", "Starter", "check_starter", "relative_to_recipe"]

LINE_COLUMNS = 110
COMMENT_COLUMN = 34
"""Where comments behind values begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """A recipe, and what to tell its user."""

    text: str
    """TOML, commented."""
    understood: tuple[str, ...]
    """What was found in the files, a line each."""
    commands: tuple[str, ...]
    """What to run next."""


@dataclass(slots=True)
class RecipeText:
    """Lines of TOML, section by section."""

    lines: list[str] = field(default_factory=list)

    def comment(self, *lines: str) -> None:
        """Add lines of comment."""
        self.lines += [f"# {line}".rstrip() for line in lines]

    def section(self, name: str, why: str = "") -> None:
        """Begin a section, with a line of comment above it where there is something to say."""
        self.lines.append("")
        if why:
            self.comment(why)
        self.lines.append(f"[{name}]")

    def value(self, key: str, value: Any, why: str = "") -> None:
        """Add a key with a number, text, list or dictionary of these, and a comment behind it."""
        lines = _assignment(key, value)
        if why:
            lines[-1] = f"{lines[-1]:<{COMMENT_COLUMN}}  # {why}"
        self.lines += lines

    def alternative(self, key: str, value: Any, why: str) -> None:
        """Add a key that is commented out, and what it would be good for."""
        (line,) = _assignment(key, value)
        self.lines.append(f"{'# ' + line:<{COMMENT_COLUMN}}  # {why}")

    def __str__(self) -> str:
        """The whole file."""
        return "\n".join(self.lines) + "\n"


def _assignment(key: str, value: Any) -> list[str]:
    line = f"{_key(key)} = {_literal(value)}"
    if not isinstance(value, Sequence) or isinstance(value, str) or len(line) <= LINE_COLUMNS:
        return [line]
    lines = [f"{_key(key)} = ["]
    for item in value:
        text = f"{_literal(item)},"
        if len(lines) > 1 and len(lines[-1]) + 1 + len(text) <= LINE_COLUMNS:
            lines[-1] += f" {text}"
        else:
            lines.append(f"    {text}")
    return [*lines, "]"]


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_literal(item)}" for key, item in value.items()) + " }" if value else "{}"
        )
    if isinstance(value, float):
        return repr(value)
    # TOML knows JSON's escapes, but forbids a bare delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    """A name as part of a key: quoted where TOML asks for it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _literal(name)


def relative_to_recipe(path: Path, recipe: Path) -> str:
    """A path as a recipe names it: from its folder where that is short, else whole."""
    absolute = path.absolute()
    relative = os.path.relpath(absolute, recipe.absolute().parent)
    return str(absolute) if relative.startswith("../..") else relative


def check_starter(starter: Starter, out: Path) -> None:
    """Read a recipe back as ``windrow train`` would, before it is written.

    Raises:
        RecipeError: it is refused.
    """
    from windrow.launch.recipe import make_recipe
    from windrow.launch.recommendation_recipe import make_recommendation_recipe

    values = {"name": out.stem, **tomllib.loads(starter.text)}
    make = make_recommendation_recipe if "log" in values else make_recipe
    make(values, source=str(out), base=out.parent)
