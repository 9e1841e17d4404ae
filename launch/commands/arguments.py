"""What several commands ask, and do, in the same way."""

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ByteSize, TypeAdapter, ValidationError

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.launcher import launched_rank
from windrow.launch.recipe_file import read_recipe

if TYPE_CHECKING:
    from windrow.comm.links import Links
    from windrow.gnn.cache_choice import Sampling
    from windrow.gnn.epoch_estimate import StepWork
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.launch.recipe import Recipe
    from windrow.launch.recommendation_recipe import RecommendationRecipe
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.tables.choose import ChosenForm

__all__ = [
    "LONG_DEADLINE_S",
    "add_log",
    "add_network",
    "add_overrides",
    "add_ranks_per_machine",
    "add_recipe",
    "add_run",
    "add_shortest",
    "add_table_bytes",
    "byte_count",
    "check_writable",
    "fit_tables",
    "load_log_recipe",
    "network_of",
    "refuse_form_alone",
    "step_work",
    "write_json",
    "writing",
]

LONG_DEADLINE_S = 3600.0
"""That ranks wait for one another where each reads, sorts and writes much between two meetings."""


def add_overrides(parser: argparse.ArgumentParser, *, example: str) -> None:
    """Declare ``--set``, which fills ``overrides`` with a list of texts; the help shows an example."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="overrides",
        help=f"change a setting of the recipe, for example {example}; may be repeated",
    )


def add_recipe(parser: argparse.ArgumentParser, text: str, *, example: str) -> None:
    """Declare a recipe of which the help says this, and ``--set``."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help=f"recipe (*.toml) {text}")
    add_overrides(parser, example=example)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Declare ``--network``, for `network_of`."""
    parser.add_argument(
        "--network",
        type=Path,
        metavar="FILE",
        help="network to predict times for: a description (*.toml, see windrow network --help), or links that windrow "
        "network --out wrote (*.json); else that of this machine, where windrow network has measured it",
    )


def add_ranks_per_machine(parser: argparse.ArgumentParser) -> None:
    """Declare ``--ranks-per-machine``, for `step_work`."""
    parser.add_argument(
        "--ranks-per-machine",
        type=int,
        metavar="N",
        help="ranks that share a machine's cores, where the network does not tell: emulated hosts share "
        "those of this one",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the folder of a run, and ``--checkpoint``, which names one of its checkpoints."""
    parser.add_argument("run_folder", type=Path, metavar="RUN_FOLDER", help="folder of a run")
    parser.add_argument(
        "--checkpoint",
        choices=("best", "latest"),
        default="best",
        help="which one: the best on the validation split by default",
    )


def add_log(parser: argparse.ArgumentParser, *, text: str) -> None:
    """Declare ``--log``, which fills ``files`` with files of samples that came after training."""
    parser.add_argument("--log", type=Path, action="append", default=[], dest="files", metavar="FILE", help=text)


def add_shortest(parser: argparse.ArgumentParser) -> None:
    """Declare ``--shortest``: down to which number format on the wire rounding is allowed."""
    parser.add_argument(
        "--shortest",
        choices=("fp32", "bf16", "int8", "int4"),
        default="fp32",
        help="shortest number format on the wire that may be proposed; what is shorter than fp32 rounds (fp32)",
    )


def add_table_bytes(parser: argparse.ArgumentParser) -> None:
    """Declare ``--table-bytes`` and ``--table-form``, for `fit_tables`."""
    parser.add_argument(
        "--table-bytes",
        type=int,
        metavar="N",
        help="of a log: say how to store its tables in so many bytes, weights and optimiser state, by how often their "
        "rows occur in the training split",
    )
    parser.add_argument(
        "--table-form",
        choices=("robe", "tensor_train", "hashed", "quotient_remainder", "narrow", "codes"),
        help="with --table-bytes: form of the tables that are not dense (robe)",
    )


def refuse_form_alone(arguments: argparse.Namespace) -> None:
    """Refuse ``--table-form`` without ``--table-bytes``."""
    if arguments.table_form is not None and arguments.table_bytes is None:
        raise RecipeError("--table-form says nothing without --table-bytes: add it, or leave --table-form out")


def fit_tables(
    recipe: "RecommendationRecipe", store: "LogStore", arguments: argparse.Namespace
) -> "tuple[RecommendationRecipe, list[ChosenForm]]":
    """The recipe with tables in so many bytes as ``--table-bytes`` says; prints the sections that make it so."""
    from windrow.recsys.log_tables import count_table_rows, log_table_specs, log_transforms
    from windrow.recsys.tables.choose import choose_forms, form_rows, with_forms
    from windrow.training.terminal import table

    if arguments.table_bytes < 1:
        raise RecipeError(f"--table-bytes {arguments.table_bytes}: expected at least 1")
    dense = replace(recipe, tables=recipe.tables.as_dense())
    chosen = choose_forms(
        log_table_specs(dense, store),
        count_table_rows(store, log_transforms(dense, store)),
        arguments.table_bytes,
        options=recipe.tables,
        form=arguments.table_form or "robe",
    )
    before, after = (sum(getattr(one, name) for one in chosen) for name in ("dense_bytes", "num_bytes"))
    print(f"{recipe.name}: tables in {after:,} bytes, in place of {before:,}\n\n{table(form_rows(chosen))}\n")
    print("For the recipe:\n")
    for one in chosen:
        settings = (f"{name} = {json.dumps(value)}" for name, value in one.settings().items())
        print("\n".join([f"[tables.{json.dumps(one.table)}]", *settings, ""]))
    return replace(recipe, tables=with_forms(dense.tables, chosen)), chosen


def load_log_recipe(arguments: argparse.Namespace) -> "RecommendationRecipe":
    """Load the recipe of a log; what is wrong with its file is said before PyTorch is imported."""
    read_recipe(arguments.recipe, arguments.overrides, kind="log")
    from windrow.launch.recommendation_recipe import load_recommendation_recipe

    return load_recommendation_recipe(arguments.recipe, arguments.overrides)


def write_json(path: Path | None, value: object) -> None:
    """Write what JSON can hold to the file of ``--json``, where one was named, and say so.

    Raises:
        StoreError: it cannot be written.
    """
    if path is not None:
        with writing(path, "--json"):
            path.write_text(json.dumps(value, indent=1), encoding="utf-8")
        print(f"\nwrote {path}")


def byte_count(text: str) -> int:
    """Bytes of an argument such as ``2GiB``, for the ``type`` of an option."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of bytes, such as 2GiB or 512MiB (KiB, MiB, GiB, TiB)"
        ) from None


def check_writable(path: Path | None, option: str = "--out", *, parquet: bool = False) -> None:
    """Refuse a file that rank 0 could not write, before hours are spent on what belongs into it.

    Args:
        path: of the file; None: none is wanted.
        option: by which it was named.
        parquet: whether it is of that format.

    Raises:
        RecipeError: pyarrow is not installed.
        StoreError: the path is a folder, or its folder is not there.
    """
    if path is None or launched_rank() > 0:
        return
    if parquet and find_spec("pyarrow") is None:
        raise RecipeError(f"{path} is written with pyarrow, which is not installed: pip install 'windrow[parquet]'")
    if path.is_dir():
        raise StoreError(f"{option} {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"{option} {path}: there is no folder {path.parent}: make it, or choose another {option}")


@contextlib.contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Around the writing of a file that the user named by an option.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}. Choose another {option}.") from error


def network_of(file: Path | None, parts: int) -> "tuple[Links | None, str]":
    """The links between so many ranks, of a file or as measured on this machine; and what they are of.

    Raises:
        RecipeError: the file is of another number of ranks.
    """
    from windrow.launch.known_links import kept_links_of_this_machine, read_network

    if file is None:
        return kept_links_of_this_machine(parts), f"{parts} ranks on this machine"
    links = read_network(file)
    if links.size != parts:
        raise RecipeError(
            f"{file} is a network of {links.size} ranks, but {parts} would train: give a network of {parts} ranks; or "
            f"partition the graph into {links.size} parts, or say --ranks {links.size} of a log"
        )
    return links, str(file)


def step_work(
    graph: "PartitionedGraph",
    recipe: "Recipe",
    links: "Links",
    ranks_per_machine: int | None,
    *,
    sampling: "Sampling | None" = None,
) -> "tuple[StepWork, str]":
    """What a step costs on a machine like this one, and where that was measured; `sampling` for the recipe's.

    Raises:
        RecipeError: the number of ranks of a machine is out of range, or the graph has types that its pipeline cannot.
    """
    import torch

    from windrow.comm.process import threads_of_rank, usable_cores
    from windrow.gnn.epoch_estimate import measure_step_work

    recipe.pipeline.check_types(graph.types)
    sharing = max(Counter(links.hosts).values()) if ranks_per_machine is None else ranks_per_machine
    if sharing < 1:
        raise RecipeError(f"--ranks-per-machine {sharing}: expected at least 1")
    wanted = torch.device(recipe.run.device)
    device = wanted if wanted.type == "cpu" or torch.cuda.is_available() else torch.device("cpu")
    cores = usable_cores()
    threads = threads_of_rank(recipe.run.threads, max(1, cores // sharing))
    slower = max(1.0, sharing * threads / cores)
    together = recipe.pipeline.topology == "partitioned"
    work = measure_step_work(
        graph, recipe.model, sampling or recipe.sampling, device, threads=threads, slower=slower, together=together
    )
    where = "measured here" if device == wanted else "measured here on a CPU, for want of a GPU"
    ranks = "1 rank" if sharing == 1 else f"{sharing} ranks"
    return work, f"{where} with {cores} {'core' if cores == 1 else 'cores'} for {ranks}"
