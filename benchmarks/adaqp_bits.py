"""What assigned widths are worth: the error of all sums at equal bytes, and the time that the assignment takes.

The model of `adaqp.py` on 2 ranks, trained with assigned widths. For each layer and way the rows of its last epoch are
given widths of 2, 4 or 8 bits anew: 4 bits for all, drawn at random, and assigned, with the largest error_share (lambda
of AdaQP) that takes no more bytes than either. Compared is the squared error that a sum has on average; rows of one
column have none. Share of time: of all epochs, with the five assignments of a run.

    python benchmarks/adaqp_bits.py [--short] [--data FOLDER]
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.adaqp import GRAPHS, HIDDEN, LAYERS, MODES
from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.bits import BitsOfChannels, GroupsOfChannels, adaptive_bits, group_messages, random_bits, uniform_bits
from windrow.comm.connect import connect
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.quantize import packed_row_bytes
from windrow.gnn.full_graph import FullGraphTask
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import open_store
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.partition import PartitionOptions
from windrow.training.trainer import Trainer

RANKS = 2
WIDTHS = (2, 4, 8)
GROUP_SIZE = 100
EPOCHS = 100
HALVINGS = 20
"""Of the range in which error_share is looked for."""
MOST_TIME = 0.02
"""Of an epoch, for assignments."""


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Train, then assign widths in every way: errors and bytes by layer and way, and the share of time."""
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=600) as world:
        graph = open_store(task["store"], world)
        options = ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=LAYERS, dropout=0.5, normalise="layer")
        model = build_model(options, in_features=graph.num_features, out_features=graph.num_outputs, seed=0)
        epochs = task["epochs"]
        trained = FullGraphTask(graph, MODES["adaptive"])
        with Trainer(world, model, trained, epochs=epochs, learning_rate=0.01) as trainer:
            trainer.train_epoch(0)  # Compiles.
            trainer.stopwatch.reset()
            for epoch in range(1, epochs):
                trainer.train_epoch(epoch)
            seconds = trainer.stopwatch.seconds
            total = sum(seconds.get(stage, 0.0) for stage in ("forward", "backward", "wait", "update", "assign bits"))
            links = described_links(NetworkDescription(nodes=world.size))
            bits, rows = trained.bits, []
            assert bits is not None
            for layer, exchange in enumerate(trained.exchanges):
                for way, halo in exchange.used.items():
                    mine = [group_messages(beta, GROUP_SIZE)[1] for beta in bits.error_weights(layer, way, halo)]
                    groups = world.all_gather_object(mine, stage="groups")
                    width = bits.codecs[layer][way].width
                    if width > 1:
                        row_bytes = {of_row: packed_row_bytes(width, of_row) for of_row in WIDTHS}
                        rows.append({"layer": layer, "way": way} | compare_widths(groups, links, row_bytes))
        return {"rows": rows, "share": seconds["assign bits"] / total}


def compare_widths(groups: GroupsOfChannels, links: Links, row_bytes: Mapping[int, int]) -> dict[str, float]:
    """Error of assigned widths over that of 4 bits for all, and over that of random ones, at no more bytes."""
    found: dict[str, float] = {}
    baselines = {"uniform": uniform_bits(groups, 4), "random": random_bits(groups, WIDTHS, 1)}
    for name, baseline in baselines.items():
        error, num_bytes = error_and_bytes(groups, baseline, row_bytes)
        low, high, best = 0.0, 1.0, error_and_bytes(groups, uniform_bits(groups, WIDTHS[0]), row_bytes)
        for _ in range(HALVINGS):
            share = (low + high) / 2
            tried = error_and_bytes(groups, adaptive_bits(groups, links, row_bytes, error_share=share), row_bytes)
            if tried[1] <= num_bytes:
                low, best = share, tried
            else:
                high = share
        found |= {f"error over {name}": best[0] / error, f"bytes over {name}": best[1] / num_bytes}
    return found


def error_and_bytes(groups: GroupsOfChannels, bits: BitsOfChannels, row_bytes: Mapping[int, int]) -> tuple[float, int]:
    """Of all channels together."""
    error, num_bytes = 0.0, 0
    for of_sender, widths in zip(groups, bits, strict=True):
        for channel, of_channel in zip(of_sender, widths, strict=True):
            error += float((channel.weights / (2.0**of_channel - 1) ** 2).sum())
            num_bytes += sum(
                int(size) * row_bytes[int(width)] for size, width in zip(channel.sizes, of_channel, strict=True)
            )
    return error, num_bytes


def measure(program: Program) -> Findings:
    """Train on each graph."""
    names: Sequence[str] = [name for name in GRAPHS if (program.options.data / f"{name}.npz").is_file()]
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    for name in names[:2] if program.short else names:
        graph = read_graph(GraphOptions(path=str(program.options.data / f"{name}.npz"), split_seed=0))
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            graph_to_store(graph, store, PartitionOptions(num_parts=RANKS, restarts=1, refine_cycles=1))
            found = program.on_ranks(RANKS, {"store": str(store), "epochs": EPOCHS})
        rows += [{"graph": name} | row for row in found["rows"]]
        for than in ("uniform", "random"):
            worst = max(row[f"error over {than}"] for row in found["rows"])
            figures[f"{name}_most_error_over_{than}_ratio"] = worst
        figures[f"{name}_assignment_share_of_time"] = found["share"]
    aims = {
        "error": Aim(
            "error below that of uniform and random widths at no more bytes, every layer and way",
            max(value for key, value in figures.items() if "most_error" in key) < 1,
        ),
        "time": Aim(
            f"assignments take under {MOST_TIME:.0%} of the time",
            max(value for key, value in figures.items() if key.endswith("of_time")) < MOST_TIME,
        ),
    }
    return Findings(figures=figures, aims=aims, tables={"widths": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(
        __file__, __doc__, measure, work=work, ranks=True, add_options=data_option("the .npz graphs", "graphs")
    )
