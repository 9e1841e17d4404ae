"""Serving: latency and throughput of an exported DLRM, against plain PyTorch with the same weights.

A DLRM of 26 tables is exported by `recsys.export` and opened by `recsys.load`. The peer is what one writes by hand: an
`nn.EmbeddingBag` for each table, `nn.Linear` layers and a batched product, with the same weights, in inference mode.
Both answer the same requests in turn, of one sample and of 1,024, given dense values and one id for each feature, or a
list of 0 to 8 ids for each, the peer with the offsets that it wants; all use one thread. The same requests as rows of
a log, from values to probability, are timed beside them, and their outputs compared; and those with ids to the model
whose tables are in 8 or 4 bits.

    python benchmarks/serving.py [--short]
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor, nn

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings
from windrow import recsys
from windrow.comm.loopback import Loopback
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.serving import TableBits

NUM_DENSE, NUM_TABLES, DIM, ROWS, SAMPLES = 13, 26, 64, 20_000, 2048
BOTTOM, TOP = (256,), (256, 128)
SIZES = (1, 1024)
MOST_IDS = 8
AIM = 1.1
OURS, PEER, OF_ROWS = "recsys.load, ids", "plain torch, ids", "recsys.load, rows of a log"
OURS_LISTS, PEER_LISTS = "recsys.load, lists of ids", "plain torch, lists of ids"
BITS: dict[str, TableBits] = {OURS: 32, f"{OURS}, 8 bits": 8, f"{OURS}, 4 bits": 4}
KEYS = {name: "served" if bits == 32 else f"served_{bits}_bits" for name, bits in BITS.items()}
KEYS |= {PEER: "torch", OF_ROWS: "served_rows", OURS_LISTS: "served_lists", PEER_LISTS: "torch_lists"}


class PlainDLRM(nn.Module):
    """The peer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(NUM_TABLES))
        self.bottom = nn.Sequential(*_layers((NUM_DENSE, *BOTTOM, DIM)))
        vectors = NUM_TABLES + 1
        row, column = torch.tril_indices(vectors, vectors, -1)
        self.pairs: Tensor
        self.register_buffer("pairs", row * vectors + column)
        self.top = nn.Sequential(*_layers((DIM + len(row), *TOP)))
        self.logit = nn.Linear(TOP[-1], 1)

    def forward(self, dense: Tensor, ids: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """Logits [B] of dense values [B, D] and, for each feature, ids [B, 1], or [V] with offsets [B]."""
        begun = self.bottom(dense)
        bags = [table(*of_feature) for table, of_feature in zip(self.tables, ids, strict=True)]
        vectors = torch.stack([begun, *bags], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        logits: Tensor = self.logit(self.top(torch.cat([begun, dots], 1)))
        return logits.squeeze(1)


def _layers(sizes: tuple[int, ...]) -> list[nn.Module]:
    return [layer for columns, width in pairwise(sizes) for layer in (nn.Linear(columns, width), nn.ReLU())]


def make_models(folder: Path) -> tuple[dict[str, recsys.ServedModel], PlainDLRM, Any]:
    """The exported model, opened, in each number of bits; the peer with its weights; and the log that all know."""
    chance = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{place}": chance.normal(size=SAMPLES) for place in range(NUM_DENSE)}
    columns |= {f"f{place}": chance.integers(0, ROWS, SAMPLES) for place in range(NUM_TABLES)}
    rows = pa.table({"label": chance.integers(0, 2, SAMPLES)} | columns)
    parquet.write_table(rows, folder / "log.parquet")
    log = recsys.prepare(
        folder / "log.parquet",
        folder / "log",
        dense=[f"x{place}" for place in range(NUM_DENSE)],
        features={f"f{place}": recsys.FeatureOptions(ids="rows", rows=ROWS) for place in range(NUM_TABLES)},
    )
    bags = recsys.EmbeddingBagCollection(log.tables(dim=DIM), world=Loopback.single())
    dims = dict(zip(bags.embedding_names, bags.embedding_dims, strict=True))
    options = ModelOptions(bottom=BOTTOM, top=TOP)
    model = recsys.build_model(options, num_dense=NUM_DENSE, pooled_dims=dims, seed=0)
    recommender = recsys.Recommender(bags, None, model)
    served = {}
    for name, bits in BITS.items():
        recsys.export(recommender, log, folder / f"model_{bits}", table_bits=bits)
        served[name] = recsys.load(folder / f"model_{bits}")
    peer = PlainDLRM().eval()
    layers = [layer for part in (peer.bottom, peer.top) for layer in part if isinstance(layer, nn.Linear)]
    theirs = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for mine, other in zip([*layers, peer.logit], theirs, strict=True):
            mine.weight.copy_(other.weight)
            mine.bias.copy_(other.bias)
        for name, table in zip(bags.embedding_bags, peer.tables, strict=True):
            assert isinstance(table, nn.EmbeddingBag)
            table.weight.copy_(bags.embedding_bags[name].weight)
    return served, peer, rows


def time_requests(
    models: Mapping[str, recsys.ServedModel], peer: PlainDLRM, rows: Any, size: int, repeats: int
) -> tuple[Comparison, Comparison]:
    """Time requests of one size: of one id for each feature, and of lists."""
    served = models[OURS]
    request = rows.slice(0, size).drop_columns(["label"])
    dense = torch.tensor(np.column_stack([request[f"x{place}"] for place in range(NUM_DENSE)]), dtype=torch.float32)
    ids = torch.tensor(np.stack([request[f"f{place}"] for place in range(NUM_TABLES)]))
    chance = np.random.default_rng(size)
    lengths = torch.tensor(chance.integers(0, MOST_IDS + 1, (NUM_TABLES, size)))
    listed = torch.tensor(chance.integers(0, ROWS, int(lengths.sum())))
    one_each = [(of_feature.unsqueeze(1), None) for of_feature in ids]
    lists = list(zip(listed.split(lengths.sum(1).tolist()), lengths.cumsum(1) - lengths, strict=True))

    def ask_peer(given: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        with torch.inference_mode():
            found: Tensor = peer(dense, given)
        return found

    expected = ask_peer(one_each)
    torch.testing.assert_close(served.score(dense, ids), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(served.predict(request), expected.sigmoid(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(served.score(dense, listed, lengths), ask_peer(lists), rtol=1e-5, atol=1e-6)
    variants = {
        PEER: Variant(run=lambda: ask_peer(one_each), rows=size),
        **{name: Variant(run=partial(model.score, dense, ids), rows=size) for name, model in models.items()},
        OF_ROWS: Variant(run=lambda: served.predict(request), rows=size),
    }
    of_lists = {
        PEER_LISTS: Variant(run=lambda: ask_peer(lists), rows=size),
        OURS_LISTS: Variant(run=lambda: served.score(dense, listed, lengths), rows=size),
    }
    return (
        compare(variants, baseline=PEER, repeats=repeats, warm_up=5),
        compare(of_lists, baseline=PEER_LISTS, repeats=repeats, warm_up=5),
    )


def measure(program: Program) -> Findings:
    """Time requests of both sizes."""
    torch.set_num_threads(1)
    repeats = 200 if program.short else 2000
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory(prefix="serving-") as name:
        served, peer, rows = make_models(Path(name))
        for size in SIZES:
            single, lists = time_requests(served, peer, rows, size, repeats)
            comparisons |= {f"requests of {size}": single, f"requests of {size}, lists": lists}
            for variant, key in KEYS.items():
                seconds = np.array({**single.variants, **lists.variants}[variant].seconds)
                for percentile in (50, 99):
                    milliseconds = 1000 * float(np.percentile(seconds, percentile))
                    figures[f"{key}_{size}_p{percentile}_milliseconds"] = milliseconds
                figures[f"{key}_{size}_samples_per_second"] = size / float(np.median(seconds))
            for percentile in (50, 99):
                for of in ("", "_lists"):
                    end = f"{of}_{size}_p{percentile}_milliseconds"
                    ratio = figures[f"served{end}"] / figures[f"torch{end}"]
                    figures[f"{size}{of}_p{percentile}_time_over_torch_ratio"] = ratio
    worst = max(figures[f"{size}{of}_p50_time_over_torch_ratio"] for size in SIZES for of in ("", "_lists"))
    aims = {"latency": Aim(f"requests of any size: at most {AIM} times the time of plain torch", worst <= AIM)}
    return Findings(figures=figures, aims=aims, comparisons=comparisons)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure)
