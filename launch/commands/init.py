"""``windrow init``: write a recipe for a graph or a log of your own.

Look at the files of a graph (NumPy archive, edge list in CSV or Parquet, METIS file, OGB folder) or of a log (Parquet,
CSV, TSV, Criteo's and libfm's layout, pairs of users and items), say what was understood, and write a commented recipe
that trains as it is. The files themselves are not changed.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.commands.arguments import writing

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow init graph friends.csv --vertices people.csv --label group
  windrow init graph mine.npz --out recipes/mine.toml
  windrow init log clicks.parquet
  windrow init log train.csv.gz validation.csv.gz test.csv.gz --label clicked --label bought
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("kind", choices=("graph", "log"), metavar="graph|log", help="what the files hold")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files, or patterns of a log's")
    parser.add_argument(
        "--vertices", type=Path, metavar="FILE", help="of an edge list: file of one row for each vertex (CSV, Parquet)"
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column of labels, where it is not found by name and values; may be repeated",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="RECIPE",
        help="recipe to write (*.toml); FILE's name in the current folder by default",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a recipe that is there")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from windrow.launch.starter_recipe import check_starter

    files, vertices = arguments.files, arguments.vertices
    out: Path = arguments.out or Path(f"{_stem(files[0])}.toml")
    if out.suffix != ".toml":
        raise RecipeError(f"--out {out}: a recipe is called something.toml")
    if out.exists() and not arguments.overwrite:
        raise StoreError(f"{out} is there already: choose another --out, or give --overwrite")
    if arguments.kind == "log" and vertices is not None:
        raise RecipeError("--vertices is for windrow init graph: a log has no vertices")
    if arguments.kind == "graph" and len(files) > 1:
        raise RecipeError(
            f"windrow init graph reads one file or folder, got {len(files)}: name the file of vertices by --vertices, "
            "and put edges of several files into one"
        )
    if arguments.kind == "log":
        from windrow.launch.starter_log import log_recipe

        found = log_recipe(files, out, labels=arguments.label)
    else:
        from windrow.launch.starter_graph import graph_recipe

        found = graph_recipe(files[0], out, vertices=vertices, labels=arguments.label)
    check_starter(found, out)
    with writing(out, "--out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(found.text, encoding="utf-8")
    print("\n".join(f"  {line}" for line in found.understood))
    print(f"{out}: a recipe for it; next:")
    print("\n".join(f"  {line}" for line in found.commands))
    return 0


def _stem(path: Path) -> str:
    """The name of a file or folder without its endings, as one that a recipe can have."""
    name = path.resolve().name.split(".")[0]
    return "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in name).strip("_") or "recipe"
