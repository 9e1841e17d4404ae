"""The file of a recipe, looked at before PyTorch is imported: it is there, it is TOML, and its kind is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from windrow.comm.errors import RecipeError
from windrow.launch.settings import read_toml, with_overrides

__all__ = ["read_recipe"]

WRONG_KIND = {
    "graph": "has a section [log], so it is the recipe of a recommendation model: windrow prepare prepares its log, "
    "windrow train trains it",
    "log": "has a section [graph], so it is the recipe of a graph: windrow partition prepares it, windrow train trains "
    "on it",
}
"""What is said where one of this kind is needed, and it is of the other."""


def read_recipe(
    path: Path, overrides: Sequence[str] = (), *, kind: Literal["graph", "log"] | None = None
) -> dict[str, Any]:
    """Read a recipe, and check what concerns it as a whole; its sections are not looked into.

    Args:
        path: a TOML file.
        overrides: ``SECTION.KEY=VALUE`` texts, as given to ``--set``.
        kind: the section that it must have; None for either.

    Returns:
        Nested dictionaries, with a name, and with either a section "graph" or a section "log".

    Raises:
        RecipeError: the file cannot be read, is not TOML, has neither of the sections or both, or the other one.
    """
    values = with_overrides({"name": path.stem, **read_toml(path)}, overrides)
    found = [section for section in WRONG_KIND if section in values]
    if not found and "task" in values:
        raise RecipeError(
            f"{path}: the run is that of a Python program, which alone has its model and data: go on there by "
            'fit(resume="auto"), measure and predict there after load_weights'
        )
    if len(found) != 1:
        raise RecipeError(
            f"{path}: has {'both sections [graph] and [log]' if found else 'neither a section [graph] nor [log]'}: "
            "give [graph] to train on a graph, or [log] to train a recommendation model on a log"
        )
    if kind is not None and kind not in found:
        raise RecipeError(f"{path}: {WRONG_KIND[kind]}")
    return values
