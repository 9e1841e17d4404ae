"""windrow.launch.epoch_estimate: steps are done, timed, and leave nothing behind."""

from pathlib import Path

import torch

from windrow.gnn.models import build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.launch.epoch_estimate import measure_step_work
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

CPU = torch.device("cpu")


def graph() -> PartitionedGraph:
    made = community_graph(300, 3, seed=1, num_features=6)
    assignment = torch.arange(300).numpy() % 3
    return PartitionedGraph.from_graph(made, PartitionBook.from_assignment(assignment, 3), 0)


def recipe(**sections: dict[str, object]) -> Recipe:
    given = {"model": {"num_layers": 2, "hidden": 8}, "sampler": {"fanouts": [3, 2]}, **sections}
    return make_recipe(
        {"name": "r", "store": "s", "graph": {"path": "g.npz"}, **given}, source="r.toml", base=Path.cwd()
    )


def test_a_step_takes_time_and_has_gradients() -> None:
    one = graph()
    asked = recipe(training={"batch_size": 30})
    threads = torch.get_num_threads()
    work = measure_step_work(one, asked, CPU, threads=1)
    assert torch.get_num_threads() == threads
    assert work.processor_s > 0
    assert work.device_s == 0
    model = build_model(asked.model, in_features=6, out_features=3, seed=0)
    assert work.gradient_bytes == 4 * sum(weight.numel() for weight in model.parameters())


def test_steps_without_seeds_and_short_rows() -> None:
    # More parts than seeds in a step: some ranks have none.
    few = recipe(training={"batch_size": 2}, sampler={"fanouts": [3, 2], "storage": "bf16"})
    assert measure_step_work(graph(), few, CPU, threads=1).processor_s > 0


def test_ranks_that_share_a_core_take_longer() -> None:
    asked = recipe(training={"batch_size": 100}, model={"num_layers": 2, "hidden": 64})
    alone = measure_step_work(graph(), asked, CPU, threads=1)
    crowded = measure_step_work(graph(), asked, CPU, threads=1, slower=1000.0)
    assert crowded.processor_s > 10 * alone.processor_s
