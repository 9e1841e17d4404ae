"""Cache and pipeline cost no quality: ROC-AUC on tolokers against single-process DGL, and the same weights without.

Trains ``examples/tolokers.toml`` on each of the ten splits: by ``windrow train`` on 2 ranks with a VIP cache and the
pipeline, again with neither, and by a single-process DGL loop with the same model (from the same first weights),
optimiser, batches, fanouts and epochs; and with replies in 8 and 4 bits and sums in bf16. Each counts with its test
value at its best validation epoch. The two runs of ours must end with the same weights and optimiser state, bit for
bit, and the same loss in every epoch. Ours and DGL's differ in what chance decides (shuffles, samples, dropout): the
mean of their differences over the splits is to be within one standard error of that mean. The short version, three
splits and a quarter of the epochs, says less, and asks for three.

    python benchmarks/salient_quality.py [--short]
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import to_dgl
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.workers import run_command
from windrow.gnn.graph import Graph
from windrow.gnn.metrics import evaluate_predictions
from windrow.gnn.models import build_model
from windrow.gnn.readers import read_graph
from windrow.launch.recipe import Recipe, load_recipe
from windrow.training.checkpoint import load_checkpoint
from windrow.training.run_folder import RunFolder

RECIPE = Path(__file__).resolve().parent.parent / "examples" / "tolokers.toml"
RANKS = 2
SPLITS, SPLITS_SHORT = 10, 3
EPOCHS_SHORT = 15
WITH, WITHOUT = "cache and pipeline", "neither"
VARIANTS = {WITH: ("cache.alpha=0.32", "pipeline.depth=4"), WITHOUT: ("cache.alpha=0.0", "pipeline.depth=0")}
FEW_BITS = {form: (*VARIANTS[WITH], f"wire.vectors={form}", "wire.sums=bf16") for form in ("int8", "int4")}
"""Replies in few bits beside it, on the same split and seed."""
QUICK_PARTITION = ("partition.restarts=1", "partition.refine_cycles=1")
DGL_NAMES = {
    "fc_self.weight": "self_linear.weight",
    "fc_self.bias": "self_linear.bias",
    "fc_neigh.weight": "neighbor_linear.weight",
}
"""DGL's parameter -> ours."""


def work(task: Mapping[str, Any]) -> object:
    """Be a rank of ours, or the one process of DGL's."""
    if "splits" in task:
        return {str(split): dgl_test_value(split, task["settings"]) for split in task["splits"]}
    from windrow.comm.process import keep_freed_memory
    from windrow.launch.training import train

    keep_freed_memory()
    result = train(load_recipe(RECIPE, task["settings"]), run_folder=Path(task["folder"]))
    return {"validation": result.validation, "test": result.test}


class DGLModel(nn.Module):
    """The recipe's model as a user of DGL writes it, with the first weights of ours."""

    def __init__(self, recipe: Recipe, graph: Graph) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        assert graph.features is not None
        options = recipe.model
        ours = build_model(options, in_features=graph.features.shape[1], out_features=1, seed=recipe.run.seed)
        width, count = options.hidden, options.num_layers
        self.rate = options.dropout
        self.input_linear = nn.Linear(graph.features.shape[1], width)
        self.layers = nn.ModuleList(SAGEConv(width, width, "mean") for _ in range(count))
        self.layer_linears = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count + 1))
        self.output_linear = nn.Linear(width, 1)
        for name in ("input_linear", "layer_linears", "output_linear"):
            self.get_submodule(name).load_state_dict(ours.get_submodule(name).state_dict())
        with torch.no_grad():
            for theirs, layer in zip(self.layers, ours.layers, strict=True):
                for to, name in DGL_NAMES.items():
                    theirs.get_parameter(to).copy_(layer.get_parameter(name))

    def forward(self, blocks: Sequence[Any], x: Tensor) -> Tensor:
        """Blocks and input rows to one logit for each destination."""
        hidden = functional.gelu(self.drop(self.input_linear(x)))
        for index, block in enumerate(blocks):
            messages = self.layers[index](block, self.norms[index](hidden))
            messages = self.drop(self.layer_linears[index](functional.gelu(self.drop(messages))))
            hidden = hidden[: block.num_dst_nodes()] + messages
        logits: Tensor = self.output_linear(self.norms[-1](hidden))
        return logits[:, 0]

    def drop(self, x: Tensor) -> Tensor:
        """Dropout."""
        return functional.dropout(x, self.rate, self.training)


def dgl_test_value(split: int, settings: Sequence[str]) -> dict[str, float]:
    """Train on one split by DGL; test value at the best validation epoch."""
    import dgl

    recipe = load_recipe(RECIPE, [*settings, *settings_of_split(split)])
    graph = read_graph(recipe.graph)
    assert graph.features is not None
    assert graph.labels is not None
    features, labels = graph.features, graph.labels.float()
    dgl_graph = to_dgl(graph).long()
    torch.manual_seed(split)
    dgl.seed(split)
    model = DGLModel(recipe, graph)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.training.learning_rate, weight_decay=recipe.training.weight_decay
    )
    loader = dgl.dataloading.DataLoader(
        dgl_graph,
        graph.train_ids,
        dgl.dataloading.NeighborSampler(list(recipe.sampler.fanouts[::-1])),
        batch_size=recipe.training.batch_size,
        shuffle=True,
    )
    values = []
    for _ in range(recipe.training.epochs):
        model.train()
        for inputs, seeds, blocks in loader:
            loss = functional.binary_cross_entropy_with_logits(model(blocks, features[inputs]), labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model([dgl_graph] * recipe.model.num_layers, features)
        values.append(
            {
                name: evaluate_predictions("roc_auc", "binary", logits[ids], graph.labels[ids])
                for name, ids in (("validation", graph.validation_ids), ("test", graph.test_ids))
            }
        )
    return max(values, key=lambda value: value["validation"])


def settings_of_split(split: int) -> list[str]:
    """What the recipe is changed by; each split has a seed of its own too."""
    return [f"graph.split={split}", f"run.seed={split}"]


def train_on_split(
    program: Program, split: int, settings: Sequence[str], folder: Path
) -> tuple[dict[str, dict[str, float]], bool]:
    """Partition a split and train on it by all variants; their values, and whether all is equal with and without."""
    changed = [*settings, *settings_of_split(split), *QUICK_PARTITION, f"store={folder / 'store'}"]
    words = [word for setting in changed for word in ("--set", setting)]
    start = [sys.executable, "-P", "-m", "windrow.launch"]
    run_command([*start, "partition", str(RECIPE), "--parts", str(RANKS), *words], quiet=True)
    changed += ["run.threads=1", "run.tensorboard=false"]
    found: dict[str, dict[str, float]] = {}
    left: dict[str, Any] = {}
    for number, (name, switches) in enumerate((VARIANTS | FEW_BITS).items()):
        run = folder / str(number)
        found[name] = program.on_ranks(RANKS, {"settings": [*changed, *switches], "folder": str(run)})
        lines = RunFolder(run).metrics_file.read_text("utf-8").splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
        left[name] = [load_checkpoint(RunFolder(run).checkpoint_folder).state["trainer"], losses]
    return found, are_equal(left[WITH], left[WITHOUT]) and found[WITH] == found[WITHOUT]


def are_equal(mine: Any, other: Any) -> bool:
    """Whether nested dictionaries and lists of tensors and plain values are the same, bit for bit."""
    if isinstance(mine, Tensor):
        return torch.equal(mine, other)
    if isinstance(mine, dict):
        return mine.keys() == other.keys() and all(are_equal(mine[key], other[key]) for key in mine)
    if isinstance(mine, list | tuple):
        return len(mine) == len(other) and all(map(are_equal, mine, other))
    return bool(mine == other)


def measure(program: Program) -> Findings:
    """Train on every split by both."""
    splits = range(SPLITS_SHORT if program.short else SPLITS)
    settings = [f"training.epochs={EPOCHS_SHORT}"] if program.short else []
    ours: list[float] = []
    rounded: dict[str, list[float]] = {form: [] for form in FEW_BITS}
    same = []
    for split in splits:
        with tempfile.TemporaryDirectory(prefix="salient-quality-") as folder:
            values, equal = train_on_split(program, split, settings, Path(folder))
        ours.append(values[WITH]["test"])
        for form, tests in rounded.items():
            tests.append(values[form]["test"])
        same.append(equal)
    found = program.in_process({"splits": list(splits), "settings": settings}, threads=1)
    theirs = [found[str(split)]["test"] for split in splits]
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    mean, error = mean_and_standard_error(differences)
    allowed = 3 if program.short else 1
    lost = {
        form: mean_and_standard_error([few - exact for few, exact in zip(tests, ours, strict=True)])
        for form, tests in rounded.items()
    }
    rows = [
        {"split": split, "windrow": ours[split], "DGL": theirs[split], "same without": same[split]}
        | {form: tests[split] for form, tests in rounded.items()}
        for split in splits
    ]
    return Findings(
        figures={
            "windrow_test_auc": fmean(ours),
            "dgl_test_auc": fmean(theirs),
            "difference_auc": mean,
            "standard_error_auc": error,
            "same_weights_share": fmean(same),
        }
        | {f"{form}_difference_auc": difference for form, (difference, _) in lost.items()}
        | {f"{form}_standard_error_auc": noise for form, (_, noise) in lost.items()},
        aims={
            "quality": Aim(f"mean difference to DGL within {allowed} standard error(s)", abs(mean) <= allowed * error),
            **{
                form: Aim(
                    f"{form} replies and bf16 sums: no worse than float32 by {allowed} standard error(s)",
                    difference >= -allowed * noise,
                )
                for form, (difference, noise) in lost.items()
            },
            "bits": Aim("same weights, bit for bit, with cache and pipeline and without", all(same)),
        },
        tables={"Test ROC-AUC at the best validation epoch": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
