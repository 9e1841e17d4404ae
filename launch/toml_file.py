"""Recipes as TOML: reading, writing, and ``--set`` assignments on top."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windrow.comm.errors import RecipeError

__all__ = ["read_toml", "with_overrides", "write_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        RecipeError: there is no such file, it is not UTF-8 text, or it breaks TOML's grammar (at which line).
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file. Give the path of a recipe (*.toml).") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: cannot be read as text: {error}. Give the path of a recipe (*.toml)."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Write a dictionary, for example from `settings_to_dict`, as a TOML file."""
    import tomli_w

    path.write_text(tomli_w.dumps(values), encoding="utf-8")


def with_overrides(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply ``--set`` assignments to a nested dictionary.

    Args:
        values: nested dictionary; not changed.
        assignments: texts such as ``training.epochs=5`` or ``sampler.fanouts=[10, 5]``. The part after the
            first "=" is a TOML value; what is not one is taken as a string, so that quotes may be left out.

    Returns:
        A new dictionary; later assignments win.

    Raises:
        RecipeError: an assignment without "=", with an empty key, or to a key inside a plain value.
    """
    result = _copied(values)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            raise RecipeError(
                f"--set {assignment}: expected SECTION.KEY=VALUE, for example training.epochs=5"
            )
        table = result
        for key in keys[:-1]:
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                raise RecipeError(f"--set {assignment}: {key} is the value {inner!r}, not a section")
            table = inner
        table[keys[-1]] = _toml_value(text.strip())
    return result


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in values.items()}
