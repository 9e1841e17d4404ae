"""What the recipes of windrow init have in common: TOML whose comments say why each value was chosen."""

import gzip
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError

__all__ = [
    "KINDS",
    "Starter",
    "check_starter",
    "column_named",
    "entries",
    "entry",
    "first_lines",
    "kind_of",
    "learning",
    "relative_to_recipe",
    "starter",
]

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


def starter(name: str, about: str, understood: Sequence[str], commands: Sequence[str], *sections: str) -> Starter:
    """A recipe of these sections for files of this name, with what they hold and what to do with it at its top."""
    lines = [f"{name}: {about},", "as windrow init found them.", "", *(f"  {command}" for command in commands)]
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return Starter(text="\n".join([head, *sections]), understood=tuple(understood), commands=tuple(commands))


def learning(why_so_many: str, *, epochs: int, batch_size: int, rate: float, patience: int, more: str = "") -> str:
    """The sections [training], which takes more settings, and [evaluation], to which more can be added."""
    return (
        "# How weights are learnt.\n[training]\n"
        + entry("epochs", epochs, "at most: [evaluation] ends it before")
        + entry("batch_size", batch_size, f"over all ranks, {why_so_many}")
        + entry("learning_rate", rate, "of the layers; with a larger batch_size try more")
        + f"{more}\n# When it is measured, and when it ends.\n[evaluation]\n"
        + entry("patience_epochs", patience, "end after so many epochs without a better validation; 0: never")
    )


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


def column_named(columns: Iterable[str], names: Sequence[str]) -> str:
    """The first of these names that a column has, as the column spells it; empty where none has."""
    spelt = {column.strip().lower(): column for column in columns}
    return next((spelt[name] for name in names if name in spelt), "")


KINDS = {"whole": "whole numbers", "fraction": "numbers", "truth": "true and false", "time": "dates and times"}
"""Kinds of columns in words."""


def kind_of(kind: Any) -> str:
    """Say "whole", "fraction", "truth", "time", "text", or the name of a ``pyarrow.DataType`` that is none of these."""
    from pyarrow import types

    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind):
        return "whole"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "fraction"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


def check_starter(starter: Starter, out: Path) -> None:
    """Read a recipe back as ``windrow train`` would, before it is written.

    Raises:
        RecipeError: it is refused.
    """
    from windrow.launch.recipe import make_any_recipe

    make_any_recipe({"name": out.stem, **tomllib.loads(starter.text)}, source=str(out), base=out.parent)
