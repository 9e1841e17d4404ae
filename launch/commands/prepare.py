"""``windrow prepare``: read a log of samples and write the store that training reads.

Read a log (Parquet, CSV, Criteo's or libfm's layout), split it into train, validation and test, turn its values into
rows of tables, and write a store that any number of ranks can train from. Several processes, started by mpirun, share
out the files of the log; the samples are the same.
"""

import argparse
import time
from contextlib import nullcontext

from windrow.comm.connect import connect, ending_all_ranks
from windrow.comm.launcher import launched_size
from windrow.launch.commands.arguments import LONG_DEADLINE_S, add_recipe, load_log_recipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow prepare examples/open_bandit.toml
  windrow prepare examples/criteo.toml --overwrite --set log.features.C1.min_count=10
  mpirun -n 4 windrow prepare examples/criteo.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "that names log and store", example="split.seed=1")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing store")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        recipe = load_log_recipe(arguments)
        from windrow.recsys.log.prepare import prepare_log
        from windrow.recsys.log_survey import log_summary
        from windrow.training.terminal import duration, make_progress
    started = time.perf_counter()
    is_alone = launched_size() == 1
    with (
        nullcontext() if is_alone else connect(deadline_s=LONG_DEADLINE_S, keep_memory=False) as world,
        make_progress(rank=0 if world is None else world.rank) as progress,
    ):
        store = prepare_log(
            recipe.store,
            recipe.log,
            recipe.split,
            shard=recipe.deduplication.shard,
            cluster=recipe.deduplication.cluster,
            # Samples with the same values are neighbours then.
            leave_out_repeats=recipe.deduplication.cluster,
            overwrite=arguments.overwrite,
            progress=progress.report,
            world=world,
        )
        progress.finish()
        for line in log_summary(store):
            progress.write(line)
        progress.write(f"prepared in {duration(time.perf_counter() - started)}")
    return 0
