"""What the recipes of windrow init have in common: TOML whose comments say why each value was chosen."""

import gzip
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError

__all__ = ["Starter", "check_starter", "entries", "entry", "first_lines", "relative_to_recipe"]

LOOKED_AT_BYTES = 1 << 16
"""Of a file of text, for its layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """A recipe, and what to tell its user."""

    text: str
    """TOML, commented."""
    understood: tuple[str, ...]
    """What was found in the files, a line each."""
    commands: tuple[str, ...]
    """What to run next."""


def entry(key: str, value: Any, why: str = "") -> str:
    """A line of TOML: a key, a number, text, list or dictionary of these, and a comment behind it."""
    return f"{_key(key)} = {_literal(value)}{why and f'  # {why}'}\n"


def entries(values: Mapping[str, Any]) -> str:
    """A line for each value."""
    return "".join(entry(key, value) for key, value in values.items())


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_literal(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # TOML knows JSON's escapes, but forbids a bare delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _literal(name)


def relative_to_recipe(path: Path, recipe: Path) -> str:
    """A path as a recipe names it: from its folder where that is short, else whole."""
    absolute = path.absolute()
    relative = os.path.relpath(absolute, recipe.absolute().parent)
    return str(absolute) if relative.startswith("../..") else relative


def first_lines(path: Path) -> list[str]:
    """The first lines of a file of text, plain or ``.gz``, each of them whole where there are several.

    Raises:
        DataError: it cannot be read as text, or there are none.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(LOOKED_AT_BYTES)
        is_cut = len(data) == LOOKED_AT_BYTES
        lines = data.decode("utf-8-sig", errors="ignore" if is_cut else "strict").splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: no text that can be read ({error}); correct the path, save it as UTF-8, plain or .gz, or name "
            "files of another format (windrow init --help)"
        ) from error
    if not lines:
        raise DataError(f"{path}: there are no rows")
    return lines[:-1] if is_cut and len(lines) > 1 else lines


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
