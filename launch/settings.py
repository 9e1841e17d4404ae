"""TOML files and tables <-> frozen dataclasses: typed, and every refusal names file, section, key, value and cure.

    [training]                      @dataclass(frozen=True, kw_only=True, slots=True)
    epochs = 20            <->      class TrainingOptions:
    decay = "none"                      epochs: int
                                        decay: float | None = 0.9

    [log.features.item_id]          class LogOptions:
    rows = 100             <->          features: Mapping[str, FeatureOptions]
    [log.features.user_id]
    rows = 50                       a table of tables, under names that the user chooses, in the file's order

    [tables]                        class TableOptions:
    dim = 16               <->          dim: int
    [tables.item_id]                    per_table: Mapping[str, TableOverrides] = field(metadata={"sections": True})
    dim = 32                        sections of such names among the keys themselves; what is None is left out

TOML has no null: the word "none" stands for it, in fields that allow None. ``--set`` assignments go on top of a file.
"""

import copy
import dataclasses
import difflib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from windrow.comm.errors import RecipeError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["NONE_WORD", "PATHS", "parse_settings", "read_toml", "settings_to_dict", "with_overrides", "write_toml"]

NONE_WORD = "none"
"""What stands for None in a file."""

PATHS = re.compile(
    r"store|run\.folder|graph\.path|graph\.edge_list\.vertex_file|log\.paths|split\.(validation|test)_paths|plan\.file|"
    r"tables\.pretrained\..+"
)
"""Settings of a recipe that are paths."""

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value stands, for messages, and the folder that its relative paths start from."""

    source: str
    base: Path
    section: str = ""

    def inside(self, key: str) -> "Place":
        """The place of a table inside this one."""
        return dataclasses.replace(self, section=f"{self.section}.{key}" if self.section else key)

    def refuse(self, message: str) -> RecipeError:
        """An error that begins with this place."""
        return RecipeError(
            f"{self.source}: [{self.section}] {message}" if self.section else f"{self.source}: {message}"
        )


def parse_settings(kind: type[Settings], values: Mapping[str, Any], *, source: str, base: Path) -> Settings:
    """Build a dataclass from a nested dictionary, checking every name and type.

    Understands int, float (an integer is accepted), str, bool, Path, Literal, tuples, None, unions of these,
    nested dataclasses, and mappings from names to any of these.

    Args:
        kind: the dataclass.
        values: nested dictionary, for example from `read_toml`.
        source: file that the values came from, for messages.
        base: folder that relative paths start from.

    Returns:
        An instance of ``kind``; paths are absolute.

    Raises:
        RecipeError: an unknown key (with the nearest name), a missing one, a value of the wrong type, or what
            a dataclass's own checks refuse.
    """
    return typing.cast(
        "Settings", _parse_table(typing.cast("type[DataclassInstance]", kind), values, Place(source, base))
    )


def settings_to_dict(settings: "DataclassInstance") -> dict[str, Any]:
    """The inverse of `parse_settings`: nested dictionaries of what TOML and JSON can hold."""
    found = {field.name: _plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    if name := _field_of_sections(settings):
        for section, values in found.pop(name).items():
            found[section] = {key: value for key, value in values.items() if value != NONE_WORD}
    return found


def _field_of_sections(kind: "DataclassInstance | type[DataclassInstance]") -> str | None:
    """The field whose entries stand among the keys of the others."""
    return next((field.name for field in dataclasses.fields(kind) if field.metadata.get("sections")), None)


def _parse_table(kind: "type[DataclassInstance]", values: object, place: Place) -> "DataclassInstance":
    if not isinstance(values, Mapping):
        raise place.refuse(f"must be a section with keys of its own, got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    types = typing.get_type_hints(kind)
    sections = _field_of_sections(kind)
    inner: dict[str, Any] = {}
    if sections:
        fields.pop(sections)
        named = {key: value for key, value in values.items() if key not in fields and isinstance(value, Mapping)}
        inner[sections] = _parse_named_values(types[sections], named, place)
        values = {key: value for key, value in values.items() if key not in named}
    for key in values:
        if key not in fields:
            raise place.refuse(_unknown_key(key, list(fields)))
    for name, field in fields.items():
        if name not in values and _is_required(field):
            raise place.refuse(f"needs {'the section' if _is_section(types[name]) else 'a value for'} {name!r}")
    parsed = {key: _parse_value(types[key], value, key, place) for key, value in values.items()}
    try:
        return kind(**parsed, **inner)
    except ValueError as error:
        raise place.refuse(str(error)) from error


def _parse_value(expected: Any, value: Any, key: str, place: Place) -> Any:
    for member in _members(expected):
        if dataclasses.is_dataclass(member) and isinstance(member, type):
            return _parse_table(member, value, place.inside(key))
        if typing.get_origin(member) is Mapping:
            return _parse_named_values(member, value, place.inside(key))
        accepted, result = _convert(member, value, place)
        if accepted:
            return result
    raise place.refuse(f"{key} = {value!r} has the wrong type: expected {_describe(expected)}")


def _parse_named_values(expected: Any, values: object, place: Place) -> dict[str, Any]:
    key_type, kind = typing.get_args(expected)
    if key_type is not str:
        raise TypeError(f"settings cannot hold fields of type {expected!r}")
    if not isinstance(values, Mapping):
        raise place.refuse(f"must be a section with names of its own, got {values!r}")
    return {name: _parse_value(kind, value, name, place) for name, value in values.items()}


def _members(expected: Any) -> list[Any]:
    """The alternatives of a union, the exact ones (literals, None) first."""
    if typing.get_origin(expected) not in (Union, UnionType):
        return [expected]
    alternatives = [inner for member in typing.get_args(expected) for inner in _members(member)]
    return sorted(alternatives, key=_admits_anything)


def _admits_anything(member: Any) -> bool:
    return not (member is NoneType or typing.get_origin(member) is Literal)


def _convert(expected: Any, value: Any, place: Place) -> tuple[bool, Any]:
    """Whether a value fits a type that is no union and no dataclass, and the value in that type."""
    origin = typing.get_origin(expected)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(expected)), value
    if origin is tuple:
        return _convert_tuple(typing.get_args(expected), value, place)
    if expected is NoneType:
        return value is None or value == NONE_WORD, None
    if expected is Path:
        return (True, (place.base / value).resolve()) if isinstance(value, str | Path) else (False, None)
    if expected is float and type(value) is int:
        return True, float(value)
    if expected in (int, float, str, bool):
        return type(value) is expected, value
    raise TypeError(f"settings cannot hold fields of type {expected!r}")


def _convert_tuple(inner: tuple[Any, ...], value: Any, place: Place) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, None
    types = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(types) != len(value):
        return False, None
    converted = []
    for expected, item in zip(types, value, strict=True):
        results = (_convert(member, item, place) for member in _members(expected))
        accepted, result = next((pair for pair in results if pair[0]), (False, None))
        if not accepted:
            return False, None
        converted.append(result)
    return True, tuple(converted)


def _describe(expected: Any) -> str:
    origin = typing.get_origin(expected)
    if origin in (Union, UnionType):
        return " or ".join(_describe(member) for member in typing.get_args(expected))
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(expected))
    if origin is tuple:
        inner = typing.get_args(expected)
        if inner[1:] == (...,):
            return f"a list of {_describe(inner[0])}"
        return f"a list of ({', '.join(_describe(item) for item in inner)})"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path (a string)"}
    return f'"{NONE_WORD}"' if expected is NoneType else names.get(expected, str(expected))


def _unknown_key(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"has no key {key!r}. " + (f"Did you mean {nearest[0]!r}?" if nearest else f"Its keys: {', '.join(known)}.")


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_section(expected: Any) -> bool:
    is_table = isinstance(expected, type) and dataclasses.is_dataclass(expected)
    return is_table or typing.get_origin(expected) is Mapping


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return settings_to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return NONE_WORD if value is None else value


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
