"""TOML files and tables <-> classes of options (`windrow.comm.options`), and ``--set`` assignments on top of a file.

[training]                      @checked_dataclass
epochs = 20            <->      class TrainingOptions:
decay = "none"                      epochs: PositiveInt
                                    decay: Share | None = 0.9

[log.features.item_id]          class LogOptions:
rows = 100             <->          features: Mapping[str, FeatureOptions]
[log.features.user_id]
rows = 50                       a table of tables, under names that the user chooses, in the file's order

[tables]                        class TableOptions:
dim = 16               <->          dim: PositiveInt
[tables.item_id]                    per_table: Sections[TableOverrides]
dim = 32                        sections of such names among the keys themselves; what is None is left out
"""

import copy
import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from windrow.comm.errors import RecipeError
from windrow.comm.options import NONE_WORD, refusal, sections_field

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "PATHS",
    "parse_settings",
    "plain_value",
    "read_toml",
    "refuse_sections",
    "settings_to_dict",
    "with_overrides",
    "write_toml",
]

PATHS = re.compile(
    r"store|run\.(folder|init_from)|graph\.path|graph\.edge_list\.vertex_file|log\.(paths|vocabularies_from)|"
    r"split\.(validation|test)_paths|plan\.(file|cost_model)|tables\.pretrained\..+|tables\.(.+\.)?code_file"
)
"""Settings of a recipe that are paths."""

Settings = TypeVar("Settings")


def parse_settings(kind: type[Settings], values: Mapping[str, Any], *, source: str, base: Path) -> Settings:
    """Build a class of options from a nested dictionary, checking every name, type and range.

    Args:
        kind: the class.
        values: nested dictionary, for example from `read_toml`.
        source: file that the values came from, for messages.
        base: folder that relative paths start from.

    Returns:
        An instance of ``kind``; paths are absolute.

    Raises:
        RecipeError: says of everything that is refused where it stands, its value and what is allowed: an unknown key
            (with the nearest name), a missing one, a value of the wrong type or out of range, or what contradicts
            another value.
    """
    try:
        return TypeAdapter(kind).validate_python(values, context=base.absolute())
    except ValidationError as error:
        raise refusal(error, kind, source) from None


def refuse_sections(values: Mapping[str, Any], reasons: Mapping[str, str], data: str, *, source: str) -> None:
    """Refuse sections that recipes of other data have: RecipeError, which gives the reason of each."""
    for name, reason in reasons.items():
        if name in values:
            raise RecipeError(f"{source}: the section [{name}] has no meaning for a {data}: {reason}. Leave it out")


def settings_to_dict(settings: "DataclassInstance") -> dict[str, Any]:
    """The inverse of `parse_settings`: nested dictionaries of what TOML and JSON can hold."""
    found = {field.name: plain_value(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    if name := sections_field(type(settings)):
        for section, values in found.pop(name).items():
            found[section] = {key: value for key, value in values.items() if value != NONE_WORD}
    return found


def plain_value(value: Any) -> Any:
    """A setting as what TOML and JSON can hold: lists for tuples, text for paths, "none" for None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return settings_to_dict(value)
    if isinstance(value, Mapping):
        return {name: plain_value(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    return NONE_WORD if value is None else str(value) if isinstance(value, Path) else value


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
        raise RecipeError(f"{path}: cannot be read as text: {error}. Give the path of a recipe (*.toml).") from error
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
            first "=" is a TOML value; what is not one is taken as a string, so that quotes may be left out. Relative
            paths start from the current folder.

    Returns:
        A new dictionary; later assignments win.

    Raises:
        RecipeError: an assignment without "=", with an empty key, or to a key inside a plain value.
    """
    result = copy.deepcopy(dict(values))
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            raise RecipeError(f"--set {assignment}: expected SECTION.KEY=VALUE, for example training.epochs=5")
        table = result
        for key in keys[:-1]:
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                raise RecipeError(f"--set {assignment}: {key} is the value {inner!r}, not a section")
            table = inner
        value = _toml_value(text.strip())
        table[keys[-1]] = _from_here(value) if PATHS.fullmatch(".".join(keys)) else value
    return result


def _from_here(value: Any) -> Any:
    """Paths that were typed start from the current folder, those of a file from its own."""
    if isinstance(value, list):
        return [_from_here(path) for path in value]
    return str(Path(value).absolute()) if isinstance(value, str) and value not in ("", NONE_WORD) else value


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text
