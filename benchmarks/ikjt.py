"""How fast lists that repeat are held once each: windrow's loops over code made of `torch.unique`, and memory copy.

A feature's lists of 1, 10 or 100 ids on average come from sessions of 16.5 samples on average, in nine of ten of which
the list is the one of the sample before; samples of a session stand next to one another, or anywhere. `deduplicate`
compares every list with the one it is taken to equal. It is timed against three ways that PyTorch offers:

* hashes: ids are mixed and weighed by place, and summed for each list through one running sum; `torch.unique` groups
  the sums. Nothing is compared, so it may be wrong.
* runs of hashes: `torch.unique_consecutive` of the same sums first, which makes few of many where neighbours repeat.
* padding: `torch.unique` of the rows of a padded matrix, which sorts them.

All go on to copy the distinct lists, as `deduplicate` does. `expand` is timed against PyTorch's `index_select` of the
positions of all ids. Lists that grow by one id with each sample (prefixes of sessions) are packed into windows as well.
A memory copy of the ids and lengths is the floor of what reads and writes them. A batch has the 65,536 samples of a row
group, which is what a reader deduplicates at a time, and each run takes four; all use one thread.

    python benchmarks/ikjt.py [--short]
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings
from windrow.comm.process import keep_freed_memory
from windrow.recsys.batches.deduplication.ikjt import deduplicate
from windrow.recsys.batches.jagged import Jagged, jagged_of, pack_windows, select_by_pytorch

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness.result import Comparison
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

LENGTHS = (1, 10, 100)
NUM_SAMPLES = 1 << 16
NUM_BATCHES = 4
PREFIX_IDS = 1 << 21
PADDING_REPEATS = 3
SESSION_SAMPLES = 16.5
UNCHANGED = 0.9
NUM_ITEMS = 10_000_000
PREFIX_ITEMS = 20
AIM = 5.0
ODD = 0x3C6EF372FE94F82B
"""Odd, so that its powers have inverses modulo 2 ** 64."""

HASHES, RUNS, PADDING, COPY, OURS = (
    "torch.unique of hashes",
    "torch.unique_consecutive of hashes, torch.unique of what is left",
    "torch.unique of padded rows",
    "memory copy",
    "deduplicate",
)
EXPAND, SELECT, PACK = "expand", "index_select", "pack windows"


def session_lists(
    num_samples: int, mean_length: int, *, clustered: bool, chance: np.random.Generator
) -> "KeyedJaggedTensor":
    """Lists of one feature."""
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    begins = chance.random(num_samples) < 1 / SESSION_SAMPLES
    changes = begins | (chance.random(num_samples) > UNCHANGED)
    changes[0] = True
    kinds = np.cumsum(changes) - 1
    if not clustered:
        kinds = chance.permutation(kinds)
    of_kinds = chance.integers(1, 2 * mean_length, kinds.max() + 1)
    starts = np.cumsum(of_kinds) - of_kinds
    ids = chance.integers(0, NUM_ITEMS, of_kinds.sum())
    lengths = of_kinds[kinds]
    places = np.repeat(starts[kinds] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return KeyedJaggedTensor(
        keys=["history"], values=torch.from_numpy(ids[places]), lengths=torch.from_numpy(lengths), stride=num_samples
    )


def powers(count: int) -> tuple[Tensor, Tensor]:
    """Powers of an odd number modulo 2 ** 64, and their inverses."""
    inverse = pow(ODD, -1, 1 << 64)
    found = [np.full(count, base, np.uint64) for base in (ODD, inverse)]
    for numbers in found:
        numbers[0] = 1
        np.multiply.accumulate(numbers, out=numbers)
    return torch.from_numpy(found[0].view(np.int64)), torch.from_numpy(found[1].view(np.int64))


def by_hashes(jagged: "KeyedJaggedTensor", weights: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct lists and the inverse through `torch.unique` of one number for each list."""
    distinct, inverse = torch.unique(hashes_of(jagged, weights, inverses), return_inverse=True)
    return copied(jagged, len(distinct), inverse)


def by_runs(jagged: "KeyedJaggedTensor", weights: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, but `torch.unique` sorts the first of each run of equal numbers alone."""
    runs, run_of = torch.unique_consecutive(hashes_of(jagged, weights, inverses), return_inverse=True)
    distinct, inverse = torch.unique(runs, return_inverse=True)
    return copied(jagged, len(distinct), inverse[run_of])


def hashes_of(jagged: "KeyedJaggedTensor", weights: Tensor, inverses: Tensor) -> Tensor:
    """One number for each list, from its ids, their places and its length."""
    values, offsets = jagged.values(), jagged.offsets()
    mixed = values * ODD
    mixed ^= mixed >> 29
    mixed *= weights[: len(values)]
    sums = torch.zeros(len(values) + 1, dtype=torch.int64)
    torch.cumsum(mixed, 0, out=sums[1:])
    of_lists = sums[offsets]
    hashes: Tensor = (of_lists[1:] - of_lists[:-1]) * inverses[offsets[:-1]] + jagged.lengths()
    return hashes


def by_padding(jagged: "KeyedJaggedTensor") -> tuple[Tensor, Tensor, Tensor]:
    """Distinct lists and the inverse through `torch.unique` of rows, filled up with what is no id."""
    padded = torch.ops.fbgemm.jagged_to_padded_dense(
        jagged.values(), [jagged.offsets()], [int(jagged.lengths().max())], -1
    )
    distinct, inverse = torch.unique(padded, dim=0, return_inverse=True)
    return copied(jagged, len(distinct), inverse)


def copied(jagged: "KeyedJaggedTensor", num_unique: int, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values and lengths of a representative of each distinct list, and the inverse."""
    representatives = torch.empty(num_unique, dtype=torch.int64)
    representatives[inverse] = torch.arange(len(inverse))
    lists = select_by_pytorch(jagged_of(jagged), representatives)
    return lists.values, lists.lengths, inverse


def time_lists(batches: list["KeyedJaggedTensor"], repeats: int) -> "Comparison":
    """Time every way but padding with these lists, one batch after the other."""
    weights, inverses = powers(max(len(batch.values()) for batch in batches) + 1)
    groups = [deduplicate(batch, ["history"]) for batch in batches]
    for batch, group in zip(batches, groups, strict=True):
        for way in (by_hashes, by_runs):
            values, lengths, inverse = way(batch, weights, inverses)
            assert len(lengths) == group.num_unique
            assert len(values) == len(group.unique.values())
            assert len(inverse) == group.num_samples
    sources = [tensor for batch in batches for tensor in (batch.values(), batch.lengths())]
    copies = [torch.empty_like(source) for source in sources]
    functions: dict[str, Callable[[], object]] = {
        HASHES: lambda: [by_hashes(batch, weights, inverses) for batch in batches],
        RUNS: lambda: [by_runs(batch, weights, inverses) for batch in batches],
        COPY: lambda: [copy.copy_(source) for copy, source in zip(copies, sources, strict=True)],
        OURS: lambda: [deduplicate(batch, ["history"]) for batch in batches],
        EXPAND: lambda: [group.expand() for group in groups],
        SELECT: lambda: [select_by_pytorch(jagged_of(group.unique), group.inverse) for group in groups],
    }
    num_bytes = sum(source.nbytes for source in sources)
    num_ids = sum(len(batch.values()) for batch in batches)
    return compare(
        {name: Variant(run=run, bytes=num_bytes, rows=num_ids) for name, run in functions.items()},
        baseline=HASHES,
        repeats=repeats,
    )


def time_padding(batch: "KeyedJaggedTensor") -> "Comparison":
    """Time the two ways through `torch.unique` with one batch, since one of them takes long."""
    weights, inverses = powers(len(batch.values()) + 1)
    functions: dict[str, Callable[[], object]] = {
        HASHES: lambda: by_hashes(batch, weights, inverses),
        PADDING: lambda: by_padding(batch),
    }
    num_ids = len(batch.values())
    return compare(
        {name: Variant(run=run, rows=num_ids) for name, run in functions.items()},
        baseline=HASHES,
        repeats=PADDING_REPEATS,
    )


def time_prefixes(num_ids: int, repeats: int, chance: np.random.Generator) -> tuple["Comparison", float]:
    """Time lists that grow by an id a sample; and ids over packed ids."""
    sizes = np.full(num_ids // (PREFIX_ITEMS * (PREFIX_ITEMS + 1) // 2), PREFIX_ITEMS)
    lengths = np.tile(np.arange(1, PREFIX_ITEMS + 1), len(sizes))
    items = chance.integers(0, NUM_ITEMS, (len(sizes), PREFIX_ITEMS))
    values = torch.from_numpy(np.concatenate([items[:, :size] for size in range(1, PREFIX_ITEMS + 1)], 1).reshape(-1))
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    packed, copy = pack_windows(Jagged(values, offsets)), torch.empty_like(values)
    assert torch.equal(packed.expand().values, values)
    functions: dict[str, Callable[[], object]] = {
        COPY: lambda: copy.copy_(values),
        PACK: lambda: pack_windows(Jagged(values, offsets)),
        EXPAND: packed.expand,
    }
    compared = compare(
        {name: Variant(run=run, bytes=values.nbytes, rows=len(values)) for name, run in functions.items()},
        baseline=COPY,
        repeats=repeats,
    )
    return compared, len(values) / len(packed.values)


def measure(program: Program) -> Findings:
    """Time lists of every length in both orders, and prefixes."""
    torch.set_num_threads(1)
    # As in `windrow train`.
    keep_freed_memory()
    repeats = 7 if program.short else 25
    chance = np.random.default_rng(0)
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    for order in ("clustered", "shuffled"):
        for length in LENGTHS:
            batches = [
                session_lists(NUM_SAMPLES, length, clustered=order == "clustered", chance=chance)
                for _ in range(NUM_BATCHES)
            ]
            comparisons[f"{order}, {length} ids"] = compared = time_lists(batches, repeats)
            comparisons[f"{order}, {length} ids, padding"] = padding = time_padding(batches[0])
            key, ours = f"{order}_{length}_ids", compared.variants[OURS]
            figures[f"{key}_padding_over_hashes_ratio"] = padding.ratio(PADDING).median
            # Over the faster of the two ways through `torch.unique` alone.
            figures[f"{key}_over_unique_ratio"] = compared.ratio(OURS).median / max(1.0, padding.ratio(PADDING).median)
            figures[f"{key}_over_runs_ratio"] = compared.ratio(OURS, RUNS).median
            figures[f"{key}_over_copy_ratio"] = compared.ratio(OURS, COPY).median
            figures[f"{key}_ids_per_second"] = (ours.rows or 0) / ours.median_s
            figures[f"{key}_gigabytes_per_second"] = (ours.bytes or 0) / ours.median_s / 1e9
            figures[f"{key}_expand_over_index_select_ratio"] = compared.ratio(EXPAND, SELECT).median
            figures[f"{key}_expand_over_copy_ratio"] = compared.ratio(EXPAND, COPY).median
    prefixes, factor = time_prefixes(PREFIX_IDS, repeats, chance)
    comparisons["prefixes"] = prefixes
    figures["prefixes_ids_over_packed_ratio"] = factor
    figures["prefixes_pack_over_copy_ratio"] = prefixes.ratio(PACK).median
    figures["prefixes_pack_ids_per_second"] = (prefixes.variants[PACK].rows or 0) / prefixes.variants[PACK].median_s
    worst = min(figures[f"clustered_{length}_ids_over_unique_ratio"] for length in LENGTHS)
    figures["worst_clustered_over_unique_ratio"] = worst
    aim = f"clustered rows, lists of any length: >= {AIM} times the faster way through torch.unique"
    return Findings(figures=figures, aims={"unique": Aim(aim, worst >= AIM)}, comparisons=comparisons)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure)
