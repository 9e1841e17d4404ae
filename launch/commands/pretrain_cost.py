"""``windrow pretrain-cost``: measure how long embedding tables take here, and train a model that predicts it.

Time real tables of a generated population, set by set, forward and backward pass with the optimiser, and train the
cost model that planner = "neuroshard", "oper" and windrow plan ask. Measurements are kept in a folder (Parquet): the
same command goes on where it was broken off. Nothing else should run on the machine. One process does this: start it
without mpirun, with the threads that a rank has in training.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import check_writable, writing

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow pretrain-cost --out costs.npz
  windrow pretrain-cost --out costs.npz --threads 1 --sets 500
  windrow plan examples/open_bandit.toml --ranks 4 --set plan.planner=neuroshard --set plan.cost_model=costs.npz

docs/planning.md says what is measured, and how far off predictions are.
"""

DEFAULT_SETS, FEWEST_SETS = 1500, 50
DEFAULT_EPOCHS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="model to write (*.npz)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="measurements to write and to go on with (the name of --out without .npz)",
    )
    parser.add_argument(
        "--sets",
        type=int,
        default=DEFAULT_SETS,
        metavar="N",
        help=f"sets of tables ({DEFAULT_SETS}; about one a second)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a rank (all cores that it may use)")
    parser.add_argument(
        "--design",
        choices=("sum", "corrected", "published"),
        default="sum",
        help="of the model: times that add up, the same corrected by a network, or a network alone (sum)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the tables (cpu)")
    parser.add_argument("--epochs", type=int, metavar="N", help=f"epochs of training a network ({DEFAULT_EPOCHS})")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    for name, least in (("sets", FEWEST_SETS), ("epochs", 1), ("threads", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise RecipeError(f"--{name} {value}: expected at least {least}")
    if arguments.design == "sum" and arguments.epochs is not None:
        raise RecipeError(f"--epochs {arguments.epochs} goes with a network: add --design corrected, or leave it out")
    if arguments.out.suffix != ".npz":
        raise RecipeError(f"--out {arguments.out}: expected a name that ends in .npz")
    check_writable(arguments.out)
    import torch

    from windrow.partition.tables.fitting import fit_compute_model
    from windrow.recsys.table_profiler import ProfileSettings, profile_tables
    from windrow.training.terminal import make_progress

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    folder = arguments.data or arguments.out.with_suffix("")
    device = torch.device(arguments.device)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise RecipeError("--device cuda, but PyTorch finds no GPU on this machine: use cpu")
    with make_progress(rank=0) as progress:

        def show(done: int, of: int) -> None:
            progress.report(f"measuring {of} sets of tables", done / of)

        measured = profile_tables(folder, ProfileSettings(sets=arguments.sets), device=device, progress=show)
        adds_up = arguments.design == "sum"
        epochs = 0 if adds_up else arguments.epochs or DEFAULT_EPOCHS
        model = fit_compute_model(
            measured.features,
            measured.seconds,
            design="corrected" if adds_up else arguments.design,
            origin=measured.origin,
            epochs=epochs,
            progress=lambda epoch, _: progress.report("training", (epoch + 1) / epochs),
        )
    with writing(arguments.out, "--out"):
        model.save(arguments.out)
    error, tau = model.origin["held out: MAPE"], model.origin["held out: Kendall tau"]
    print(
        f"{len(measured.seconds)} sets, kept in {folder}; steps of one differ by {float(measured.noise.mean()):.1%}\n"
        f"on a tenth of them that it has not seen, predictions are off by {error:.1%}, Kendall's tau {tau:.3f}\n"
        f"wrote {arguments.out}"
    )
    return 0
