"""Settings as frozen dataclasses. Types and ranges stand beside the fields, pydantic checks them, one error says more.

    @checked_dataclass
    class TrainingOptions:
        epochs: PositiveInt = 10
        clip_norm: NonNegativeFloat | None = None

    TrainingOptions(epochs=0)       RecipeError: epochs = 0 must be an integer of at least 1
    TrainingOptions(epoch=3)        RecipeError: has no key 'epoch'. Did you mean 'epochs'?

They are built from keywords, or from the nested dictionaries of a file (`windrow.launch.settings`). An integer passes
for a number, a list for a tuple, a text for a path, and the word "none" for None, where a field allows it; nothing else
is converted. `dataclasses.replace`, `fields` and `asdict` work, and `replace` checks again.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeAlias, TypeVar, cast, dataclass_transform, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs, CoreSchema, core_schema

from windrow.comm.errors import RecipeError, nearest_name

__all__ = [
    "NONE_WORD",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PathOption",
    "PositiveFloat",
    "PositiveInt",
    "Probability",
    "Sections",
    "Share",
    "checked_dataclass",
    "described",
    "refusal",
    "resolved_path",
    "sections_field",
]

NONE_WORD = "none"
"""What stands for None in a file: TOML has no null."""

_Schema: TypeAlias = Mapping[str, Any]
"""JSON schema of a class of options, or of a part of it."""

Options = TypeVar("Options")
Value = TypeVar("Value")

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""From nothing to all."""

Probability: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""Of what must not always happen."""

Sections: TypeAlias = Annotated[Mapping[str, Value], Field(json_schema_extra={"sections": True})]
"""Tables under names that the user chooses, among the keys of the class itself: [tables.item_id] beside tables.dim."""


def _path(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str | Path):
        return value
    return resolved_path(info.context / value) if info.context else Path(value)


def resolved_path(path: Path) -> Path:
    """The absolute path, its folder without links; the file keeps its name, whose ending says how it is stored."""
    return path.parent.resolve() / path.name


PathOption: TypeAlias = Annotated[Path, BeforeValidator(_path)]
"""A path; a relative one in a file starts from the file's folder."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def checked_dataclass(kind: type[Options]) -> type[Options]:
    """Make a class of annotated fields a frozen, keyword-only dataclass whose fields are checked when one is made.

    ``__post_init__``, where there is one, runs when each field is right: for what concerns several of them. It raises
    `RecipeError`.

    Returns:
        The dataclass. Making one raises `RecipeError`: names each field that is wrong, its value and what is allowed.
    """
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    kind.__get_pydantic_core_schema__ = classmethod(_schema_of_section)  # type: ignore[attr-defined]  # made here
    made: Any = dataclass(frozen=True, kw_only=True, slots=True, config=config)(kind)
    make = made.__init__

    @functools.wraps(make)
    def checked(self: object, **values: Any) -> None:
        try:
            make(self, **values)
        except ValidationError as error:
            raise refusal(error, made) from None

    made.__init__ = checked
    return made  # type: ignore[no-any-return]  # the class that was given, with slots


def _schema_of_section(_: type, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema = handler(kind)
    # Of the class itself, not of its fields: strict would take instances of it only, and no section of a file.
    cast("dict[str, Any]", handler.resolve_ref_schema(schema))["strict"] = False
    return core_schema.no_info_before_validator_function(functools.partial(_understood, kind), schema)


def _understood(kind: Any, given: object) -> object:
    """Put "none", lists and sections of a file, and numbers of NumPy, into the form that the fields have."""
    values = given.kwargs or {} if isinstance(given, ArgsKwargs) else given
    if not isinstance(values, Mapping):
        return values
    fields = kind.__pydantic_fields__
    optional = {name for name, field in fields.items() if NoneType in get_args(field.annotation)}
    found = {name: None if name in optional and value == NONE_WORD else _plain(value) for name, value in values.items()}
    if (sections := sections_field(kind)) and sections not in found:
        named = {name: value for name, value in found.items() if name not in fields and isinstance(value, Mapping)}
        found = {name: value for name, value in found.items() if name not in named} | {sections: named}
    return found


def _plain(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value  # type: ignore[attr-defined]  # NumPy is not imported for this


def sections_field(kind: Any) -> str | None:
    """The field of a class of options that is `Sections`; None where there is none."""
    fields = kind.__pydantic_fields__.items()
    return next((name for name, field in fields if field.json_schema_extra == {"sections": True}), None)


# ------------------------------------------------------------------------------------------------------------- refusals


def refusal(error: ValidationError, kind: type, source: str = "") -> RecipeError:
    """What pydantic found while a class of options was made from a file: one line for each value that is refused."""
    document = TypeAdapter(kind).json_schema()
    # A list is also too short for pydantic where its members are refused.
    errors = [found for found in error.errors(include_url=False) if found["type"] != "too_short" or not found["input"]]
    # A union is refused once for each of its members, in equal words.
    return RecipeError("\n".join(dict.fromkeys(_line(document, dict(found), source) for found in errors)))


def _line(document: _Schema, found: dict[str, Any], source: str) -> str:
    is_missing = found["type"].startswith("missing")
    path = list(found["loc"][:-1] if is_missing else found["loc"])
    section, here = [], document
    while path and (inner := _entry(document, here, path[0])) and inner.get("type") == "object":
        name, here = path.pop(0), inner
        section += [] if inner.get("sections") else [str(name)]
    value = list(found["input"]) if isinstance(found["input"], tuple) else found["input"]
    refused = found.get("ctx", {}).get("error")
    if path:
        message = _of_value(document, here, path, value, refused)
    elif is_missing:
        name = found["loc"][-1]
        is_table = (_entry(document, here, name) or {}).get("type") == "object"
        message = f"needs {'the section' if is_table else 'a value for'} {name!r}"
    else:
        message = str(refused or f"must be a section with keys of its own, got {value!r}")
    place = f"[{'.'.join(section)}] " if section else ""
    return f"{source}: {place}{message}" if source else place + message


def _of_value(document: _Schema, here: _Schema, path: list[Any], value: object, refused: Exception | None) -> str:
    schema = _entry(document, here, path[0])
    if schema is None:
        known = [name for name, inner in here["properties"].items() if not inner.get("sections")]
        return f"has no key {path[0]!r}. {nearest_name(path[0], known)}"
    key = str(path[0])
    for part in path[1:]:
        if (inner := _entry(document, schema, part)) is None:
            break
        key, schema = f"{key}[{part}]", inner
    return f"{key} = {value!r}: {refused}" if refused else f"{key} = {value!r} must be {described(schema)}"


# --------------------------------------------------------------------------------------------------------- JSON schemas

_WORDS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "path": "a path",
    "null": f'"{NONE_WORD}"',
}
_BOUNDS = {
    "minLength": "at least {}",
    "maxLength": "at most {}",
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
}


def _entry(document: _Schema, schema: _Schema, part: str | int) -> _Schema | None:
    """The schema of a key of a table, or of an element of a list; None where there is no such part."""
    if isinstance(part, int):
        inside = schema["prefixItems"][part] if "prefixItems" in schema else schema.get("items")
    else:
        inside = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
    return _resolved(document, inside) if inside else None


def _resolved(document: _Schema, schema: _Schema) -> _Schema:
    """What a reference names, and of alternatives the one that has parts."""
    if "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    with_parts = [inner for inner in schema.get("anyOf", ()) if {"items", "prefixItems"} & inner.keys()]
    return with_parts[0] if with_parts else schema


def described(schema: _Schema) -> str:
    """What a value may be, in words: "an integer of at least 1"."""
    kind, bounds = schema.get("type"), [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    if kind == "integer" and schema.get("exclusiveMinimum") == 0:
        bounds[0] = "at least 1"
    if "anyOf" in schema:
        words = " or ".join(map(described, schema["anyOf"]))
    elif "const" in schema:
        words = repr(schema["const"])
    elif "enum" in schema:
        words = "one of " + ", ".join(map(repr, schema["enum"]))
    elif "prefixItems" in schema:
        words = f"a list of ({', '.join(map(described, schema['prefixItems']))})"
    elif kind == "array":
        words = f"a list{' of one or more' if schema.get('minItems') else ''}, each {described(schema['items'])}"
    elif kind == "object":
        words = f"a section of names, each {described(schema['additionalProperties'])}"
    else:
        words = _WORDS[schema.get("format", kind)]
    between = " " if not bounds or bounds[0].startswith(("above", "below")) else " of "
    unit = " characters" if kind == "string" and bounds else ""
    return f"{words}{between}{' and '.join(bounds)}{unit}".rstrip()
