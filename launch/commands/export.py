"""``windrow export``: write the model of a run for serving, or its embedding tables to one file.

Put the embedding tables of a checkpoint together, whichever ranks held them. model: a folder with tables, dense part
and preprocessing, which recsys.load opens without MPI, to predict rows of a log. safetensors: one file, each table
under its name. torchrec: a state dict that TorchRec's EmbeddingBagCollection loads. One process does this: start it
without mpirun.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.errors import StoreError
from windrow.launch.commands.arguments import add_run, writing
from windrow.training.run_folder import RunFolder, open_run_folder

if TYPE_CHECKING:
    from windrow.launch.recommendation_recipe import RecommendationRecipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow export runs/open_bandit-1 --format model --out served
  windrow export runs/open_bandit-1 --format model --table-bits 8 --out served
  windrow export runs/open_bandit-1 --format safetensors --out tables.safetensors
  windrow export runs/open_bandit-1 --format torchrec --out tables.pt --table item_id --table user_id
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_run(parser)
    parser.add_argument(
        "--format", choices=("model", "safetensors", "torchrec"), default="safetensors", help="safetensors by default"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="file, or folder of a model, to write or to replace"
    )
    parser.add_argument(
        "--table",
        action="append",
        default=None,
        metavar="NAME",
        dest="tables",
        help="write this table only; may be repeated",
    )
    parser.add_argument(
        "--table-bits",
        type=int,
        choices=(32, 8, 4),
        default=32,
        help="of a model, for each number of tables that are not compressed; 32 by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    run_folder = open_run_folder(arguments.run_folder)
    if arguments.format == "model":
        return _export_model(arguments, run_folder)
    if arguments.table_bits != 32:
        raise StoreError("--table-bits goes with --format model: other formats have float32")
    if arguments.out.is_dir():
        raise StoreError(f"--out {arguments.out} is a folder: name a file in it")
    from windrow.comm.loopback import Loopback
    from windrow.launch.recommendation_recipe import load_recommendation_recipe
    from windrow.recsys.log_tables import sequence_tables
    from windrow.recsys.tables.import_export import export_safetensors, export_torchrec
    from windrow.training.checkpoint import load_together, tables_folder
    from windrow.training.shard_files import ShardReader
    from windrow.training.terminal import byte_size

    folder = run_folder.checkpoint_folder
    checkpoint = load_together(Loopback.single(), folder, lambda _: None, arguments.checkpoint)
    files = checkpoint.header.table_files
    if not files:
        raise StoreError(f"{checkpoint.path} has no embedding tables: give the folder of a recommendation run")
    with ShardReader(tables_folder(checkpoint.path), files) as reader:
        # Full-graph training may hold rows of others beside tables.
        tables = arguments.tables or [table for table in reader.tables if "weight" in reader.contents(table)]
        with writing(arguments.out, "--out"):
            if arguments.format == "safetensors":
                export_safetensors(reader, arguments.out, tables=tables)
            else:
                recipe = load_recommendation_recipe(run_folder.recipe_file)
                sequences = sequence_tables(recipe)
                _refuse_compressed(recipe, tables)
                export_torchrec(reader, arguments.out, tables=tables, sequences=sequences)
    size = byte_size(arguments.out.stat().st_size)
    print(f"{arguments.out}: {len(tables)} tables, {size}, after epoch {checkpoint.header.epoch}")
    return 0


def _refuse_compressed(recipe: "RecommendationRecipe", tables: Sequence[str]) -> None:
    """TorchRec has no tables that are computed from others."""
    from windrow.recsys.log_tables import sequence_tables

    names = {recipe.log.table_of(feature) for feature in recipe.log.features} | sequence_tables(recipe)
    for name in sorted(names):
        form = recipe.tables.of(name).form
        if form != "dense" and any(table.startswith(f"{name}.") for table in tables):
            raise StoreError(
                f"table {name!r} is stored as {form}, which TorchRec does not know: leave it out with --table, or take "
                "--format model, which serves it, or safetensors, which writes what is stored"
            )


def _export_model(arguments: argparse.Namespace, run_folder: RunFolder) -> int:
    import torch

    from windrow.comm.loopback import Loopback
    from windrow.launch.recipe import load_any_recipe
    from windrow.launch.recommendation_recipe import RecommendationRecipe
    from windrow.launch.training import make_trainer, without_pretrained
    from windrow.partition.tables.planners import PlanOptions
    from windrow.recsys.exporting import export
    from windrow.recsys.log.store import LogStore

    recipe = load_any_recipe(run_folder.recipe_file)
    if not isinstance(recipe, RecommendationRecipe) or recipe.log.format == "interactions":
        raise StoreError(f"{run_folder.path} is no run of a model of clicks: --format model serves those alone")
    if arguments.tables:
        raise StoreError("--table goes with --format safetensors or torchrec: a model needs all of its tables")
    # Where ranks had the tables is nothing to one process.
    alone = replace(without_pretrained(recipe), plan=PlanOptions())
    with make_trainer(Loopback.single(), alone, torch.device("cpu")) as trainer:
        epoch = trainer.load_weights(run_folder.path, arguments.checkpoint).header.epoch
        log = LogStore.open(recipe.store)
        export(
            trainer.model,
            log,
            arguments.out,
            transforms=recipe.transforms,
            table_bits=arguments.table_bits,
            overwrite=True,
        )
    print(f"{arguments.out}: the model after epoch {epoch}, for windrow.recsys.load")
    return 0
