"""The page of all settings, docs/settings.md, written from the classes that check them.

python -P tools/settings_reference.py > docs/settings.md
"""

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

from pydantic import TypeAdapter

from windrow.comm.links import NetworkDescription
from windrow.comm.options import described, sections_field
from windrow.launch.recipe import Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import plain_value

__all__ = ["settings_reference"]

INTRODUCTION = """\
# All settings

<!-- Written by: python -P tools/settings_reference.py > docs/settings.md -->

A recipe is a TOML file of these sections; a key without a default is needed. `--set SECTION.KEY=VALUE` on the command
line goes on top. Relative paths start from the recipe's folder, and `"none"` stands for no value. In Python the keys
are keywords of the class that is named with a section. How to use them: [howto.md](howto.md),
[recommendation.md](recommendation.md).
"""


def settings_reference() -> str:
    """The whole page, in Markdown: for each kind of file its sections, and for each key values, default, meaning."""
    kinds = {
        "Recipes of graphs": Recipe,
        "Recipes of click logs and interactions": RecommendationRecipe,
        "Descriptions of networks": NetworkDescription,
    }
    written: set[type] = set()
    parts = [INTRODUCTION]
    for title, kind in kinds.items():
        parts += [f"## {title}\n", *_section(kind, "", written)]
    return "\n".join(parts)


def _section(kind: Any, path: str, written: set[type]) -> Iterator[str]:
    """A section and those inside it."""
    name = f"`{kind.__module__}.{kind.__qualname__}`"
    if path:
        yield f"### [{path}]\n"
    if kind in written:
        yield f"As above: {name}.\n"
        return
    written.add(kind)
    yield f"{' '.join((inspect.getdoc(kind) or '').partition(chr(10) * 2)[0].split())} {name}\n"
    inner = {
        field.name: _class_inside(kind.__pydantic_fields__[field.name].annotation) for field in dataclasses.fields(kind)
    }
    meanings, properties = _meanings(kind), TypeAdapter(kind).json_schema()["properties"]
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for field in dataclasses.fields(kind):
        if inner[field.name] is None:
            cells = [f"`{field.name}`", described(properties[field.name]), _default(field), meanings[field.name]]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
    for name, found in inner.items():
        if found is not None:
            below = path if name == sections_field(kind) else f"{path}.{name}".lstrip(".")
            is_named = not dataclasses.is_dataclass(kind.__pydantic_fields__[name].annotation)
            yield from _section(found, f"{below}.NAME" if is_named else below, written)


def _class_inside(annotation: Any) -> Any:
    """The class of options that a field holds, or holds under names; None where it holds plain values."""
    return next((kind for kind in (annotation, *get_args(annotation)) if dataclasses.is_dataclass(kind)), None)


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(plain_value(field.default_factory()))}`"
    return "" if field.default is dataclasses.MISSING else f"`{json.dumps(plain_value(field.default))}`"


def _meanings(kind: type) -> dict[str, str]:
    """Docstrings of fields; a field that a class changes keeps that of the class below."""
    found = {}
    for base in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for pair in pairwise(definition.body):  # type: ignore[attr-defined]  # it is a class
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.replace("``", "`").split())
    return found


if __name__ == "__main__":
    print(settings_reference(), end="")
