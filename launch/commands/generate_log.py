"""``windrow generate-log``: make up a log of sessions with published statistics, of any size.

Write a made-up log of sessions as one Parquet file: 16.5 samples a session, of which about 80 % of the values are those
of the sample before, as published for production logs (RecD, Zhao et al., MLSys 2023). The same seed gives the same
log, and a longer log begins with the sessions of a shorter one. Memory does not grow with the log. One process does
this: start it without mpirun.
"""

import argparse
import os
import time
from pathlib import Path

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.commands.arguments import writing

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow generate-log stores/log.parquet
  windrow generate-log stores/log.parquet --samples 1000000 --recipe stores/generated.toml
  windrow generate-log stores/small.parquet --samples 50000 --length-scale 0.1 --rows-scale 0.01
  windrow generate-log stores/clustered.parquet --order sessions --seed 1

then, with the recipe:
  windrow prepare stores/generated.toml
  mpirun -n 2 windrow train stores/generated.toml

docs/session-logs.md says what the columns are, which statistics are published, and what was chosen.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="file to write (*.parquet)")
    parser.add_argument(
        "--samples", type=int, default=100_000, metavar="N", help="samples of the log; 100000 by default"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another one gives another log")
    parser.add_argument(
        "--order",
        choices=("time", "sessions"),
        default="time",
        help="time: samples of many sessions among each other, as they were logged; sessions: those of a session next "
        "to one another; time by default",
    )
    parser.add_argument(
        "--length-scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="what the lengths of lists are multiplied by; with 1, the default, a sample has about 490 ids",
    )
    parser.add_argument(
        "--rows-scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="what the sizes of tables are multiplied by; with 1, the default, all together have about 18 million rows",
    )
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="also write a recipe (*.toml) for windrow prepare and windrow train; its store is a folder beside it",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from windrow.comm.process import usable_cores
    from windrow.launch.settings import write_toml
    from windrow.recsys.log.synthetic.generate import generate_log, session_log_recipe
    from windrow.recsys.log.synthetic.options import recd
    from windrow.training.terminal import byte_size, duration, make_progress

    output: Path = arguments.output
    if arguments.samples < 1:
        raise RecipeError(f"--samples {arguments.samples}: ask for at least 1")
    if arguments.recipe is not None and arguments.recipe.resolve() == output.resolve():
        raise RecipeError(f"--recipe {arguments.recipe} is the log itself: choose another file for one of them")
    for path in (output, arguments.recipe):
        if path is not None and path.exists() and not arguments.overwrite:
            raise StoreError(f"{path} is there already: choose another file, or give --overwrite")
    options = recd(length_scale=arguments.length_scale, rows_scale=arguments.rows_scale, seed=arguments.seed)
    started = time.perf_counter()
    with make_progress(rank=0) as progress:
        progress.start("samples", arguments.samples)
        generate_log(
            output,
            options,
            samples=arguments.samples,
            order=arguments.order,
            threads=usable_cores(),
            progress=progress.advance,
        )
        progress.finish()
        progress.write(
            f"{output}: {arguments.samples:,} samples, {options.samples_per_session:g} to a session, "
            f"{options.ids_per_sample():.0f} ids each in {len(options.features)} features, "
            f"{byte_size(output.stat().st_size)}, in {duration(time.perf_counter() - started)}"
        )
        if arguments.recipe is not None:
            recipe: Path = arguments.recipe
            with writing(recipe, "--recipe"):
                recipe.parent.mkdir(parents=True, exist_ok=True)
                # Paths in a recipe start from its folder.
                seen = os.path.relpath(output.resolve(), recipe.resolve().parent)
                write_toml(recipe, session_log_recipe(options, log=seen, store=recipe.stem))
            progress.write(f"{recipe}: a recipe for it")
    return 0
