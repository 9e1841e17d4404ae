"""Predict what caches of several sizes would save in rows, bytes and seconds, without training.

One process counts, for all parts of the graph, what each size leaves to be asked for; `windrow.gnn.epoch_estimate`
makes seconds of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from windrow.caching.selection import automatic_capacities, cache_capacity, least_that_suffices, rows_that_fit
from windrow.comm.errors import DataError
from windrow.comm.links import Links
from windrow.comm.wire_savings import FormatSaving, row_savings, saving_rows, sum_savings
from windrow.gnn.cache_choice import Sampling, parts_near, rank_part, row_sizes
from windrow.gnn.epoch_estimate import ID_BYTES, EpochTime, StepWork, estimate_epoch
from windrow.gnn.partitioned import PartitionedGraph
from windrow.training.journal import COLOURS, new_figure
from windrow.training.terminal import byte_size, count, table

__all__ = ["USUAL_ALPHAS", "Explanation", "SizeEstimate", "describe_explanation", "explain", "write_explanation_plot"]

USUAL_ALPHAS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
"""Replication factors that are shown where nobody asks for others."""

CURVE_POINTS = 101
"""On the curve whose knee is looked for; they are denser where caches are small."""

HARDLY_SLOWER = 0.01
"""A knee may cost this share of the least epoch time: less than by what one epoch differs from the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeEstimate:
    """What one size of the caches means, over all ranks."""

    alpha: float
    """Replication factor."""
    kept_rows: int
    """Rows in the largest cache."""
    memory_bytes: int
    """Of the largest cache."""
    remote_rows: float
    """Rows that ranks ask each other for in an epoch, in expectation."""
    remote_bytes: float
    """Of their ids and themselves on the wire."""
    time: EpochTime | None
    """Of an epoch; None where the network is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What caches would save."""

    num_vertices: int
    """N."""
    num_parts: int
    """Ranks."""
    steps: int
    """In an epoch."""
    input_rows: float
    """Rows, local and remote, that all minibatches of an epoch need, in expectation."""
    row_bytes: int
    """Of a row where it is owned."""
    wire_row_bytes: int
    """Of a row on the wire, without the 8 bytes of its id, and of a copy in a cache."""
    work: StepWork | None
    """Of one step on one rank; None where the network is not known."""
    sizes: tuple[SizeEstimate, ...]
    """From the smallest alpha to the largest: those asked for, and the marked ones."""
    curve: tuple[SizeEstimate, ...]
    """Many alphas, up to the last that is worth its memory."""
    formats: tuple[FormatSaving, ...]
    """What shorter formats on the wire would save a step with the recipe's caches; none without a network."""
    marks: Mapping[str, SizeEstimate]
    """"knee", where times are known: the least alpha whose epoch time is within 1 % of the shortest. "auto": what
    training keeps with ``cache.alpha = "auto"`` and the recipe's ``cache.memory_gib``. "all": every rank keeps every
    row. "recipe": what training keeps with the recipe as it is."""


def explain(
    graph: PartitionedGraph,
    sampling: Sampling,
    *,
    pipelined: bool = True,
    alphas: Sequence[float] = USUAL_ALPHAS,
    links: Links | None = None,
    work: StepWork | None = None,
) -> Explanation:
    """Work out what caches would save, for all parts of a graph in this one process.

    Args:
        graph: topology and training vertices; of its features only shape and dtype count.
        sampling: as it would be trained.
        pipelined: whether the network works while minibatches are sampled and computed.
        alphas: replication factors to show; those that would keep everything anyway are left out.
        links: of a network with one rank for each part; None where it is not known. Ranks of one host share memory, if
            the cache options say so.
        work: of a step; None where the network is not known.

    Raises:
        DataError: the graph has no features.

    Cost:
        That of `windrow.gnn.cache_choice.rank_part` for every part, one after another; memory for one at a time.
    """
    if graph.num_features == 0:
        raise DataError(
            "the graph has no features, which caches are about: rows of vertices that are learnt are asked for in "
            "every step, each as often as minibatches of other ranks need it"
        )
    parts, vertices, cache = graph.book.num_parts, graph.num_vertices, sampling.cache
    row_bytes, wire_row_bytes = row_sizes(sampling.sampler, sampling.wire, graph.features)
    near = parts_near(links.hosts if links is not None and cache.shared_memory else None, parts)
    remote = [vertices - sum(map(graph.book.part_size, {part, *near[part]})) for part in range(parts)]
    full = max(remote) * parts / vertices
    given = [] if isinstance(cache.alpha, str) else [cache.alpha]
    on_curve = (full * np.linspace(0.0, 1.0, CURVE_POINTS) ** 2).tolist()
    tried = [*on_curve, *(alpha for alpha in alphas if alpha < full), *given]
    by_alpha = [cache_capacity(alpha, vertices, parts) for alpha in tried]

    # Behind the sizes asked for stand the two that depend on the part: what is worth it and fits, and everything.
    kept = np.empty((len(tried) + 2, parts), np.int64)
    asked = np.empty((len(tried) + 2, parts, parts))
    samplers = graph.samplers()
    worthwhile, input_rows, steps = [], 0.0, 0
    for part in range(parts):
        ranking = rank_part(graph, part, sampling, samplers=samplers, near=near[part])
        worthwhile.append(ranking.worthwhile(sampling.epochs))
        affordable = min(worthwhile[-1], rows_that_fit(cache.memory_gib, wire_row_bytes))
        capacities = [*by_alpha, affordable, remote[part]]
        kept[:, part] = [ranking.num_kept(capacity) for capacity in capacities]
        asked[:, part] = ranking.expected_rows(capacities)
        input_rows += ranking.input_rows
        steps = ranking.steps

    def estimate(place: int, alpha: float) -> SizeEstimate:
        rows, kept_rows = float(asked[place].sum()), int(kept[place].max())
        time = None
        if links is not None and work is not None:
            each_step = None if (kept[place] == remote).all() else asked[place] / steps
            time = estimate_epoch(work, links, each_step, wire_row_bytes, steps=steps)
        return SizeEstimate(
            alpha=alpha,
            kept_rows=kept_rows,
            memory_bytes=kept_rows * wire_row_bytes,
            remote_rows=rows,
            remote_bytes=rows * (ID_BYTES + wire_row_bytes),
            time=time,
        )

    estimates = [estimate(place, alpha) for place, alpha in enumerate(tried)]
    curve = tuple(one for one in estimates[:CURVE_POINTS] if one.kept_rows <= max(worthwhile))
    automatic = everything = estimate(-1, full)
    automatic_rows = automatic_capacities(worthwhile, remote, wire_row_bytes, cache.memory_gib)
    if automatic_rows != remote:
        automatic = estimate(-2, max(automatic_rows) * parts / vertices)
    chosen = estimates[-1] if given else automatic
    marks = {"auto": automatic, "all": everything, "recipe": chosen}
    seconds = [one.time.seconds(pipelined=pipelined) for one in curve if one.time is not None]
    if seconds:
        marks = {"knee": curve[least_that_suffices(seconds, tolerance=HARDLY_SLOWER)], **marks}
    formats: list[FormatSaving] = []
    if links is not None and work is not None:
        place = len(tried) - 1 if given else -1 if automatic is everything else -2
        if graph.features.dtype == torch.float32 and sampling.sampler.storage == "fp32":
            width = graph.features.shape[1:].numel()
            formats += row_savings("vectors", links, asked[place].T / steps, width, once=True)
        formats += sum_savings(links, work.gradient_numbers)
    shown = {one.alpha: one for one in (*estimates[CURVE_POINTS:], *marks.values())}
    return Explanation(
        num_vertices=vertices,
        num_parts=parts,
        steps=steps,
        input_rows=input_rows,
        row_bytes=row_bytes,
        wire_row_bytes=wire_row_bytes,
        work=work,
        sizes=tuple(shown[alpha] for alpha in sorted(shown)),
        curve=curve,
        formats=tuple(formats),
        marks=marks,
    )


def describe_explanation(found: Explanation, sampling: Sampling, *, network: str, computed: str) -> str:
    """Lay out an explanation: a few lines about the job, and the table of sizes, which docs/caching.md explains.

    `network` says which one times are of, empty where none is known; `computed` where a step's work was measured.
    """
    fanouts = ", ".join(map(str, sampling.sampler.fanouts))
    head = [
        f"{found.num_vertices:,} vertices in {found.num_parts} parts; {found.steps:,} steps an epoch",
        f"fanouts {fanouts}; cache policy {sampling.cache.policy}",
    ]
    head.append(
        f"an epoch needs {count(found.input_rows)} rows; a row takes {byte_size(found.row_bytes)} locally, "
        f"{byte_size(found.wire_row_bytes)} in a cache and on the wire, its id 8 B more"
    )
    if found.work is None:
        head.append(
            "no times, since the network is not known: name one by --network FILE, or measure this machine's by\n"
            f"  mpirun -n {found.num_parts} windrow network"
        )
    else:
        work = f"{found.work.processor_s * 1e3:.3g} ms of work"
        if found.work.device_s:
            work += f" of the processor and {found.work.device_s * 1e3:.3g} ms of the GPU"
        head.append(f"network: {network}; a step is {work}, {computed}")
        if found.work.asked_lists:
            ids, neighbours = map(sum, zip(*found.work.asked_lists, strict=True))
            head.append(
                f"ranks sample together: in a step each asks others about {ids:,.0f} vertices and gets "
                f"{neighbours:,.0f} neighbours"
            )
    if not found.marks["all"].alpha:
        head.append("all ranks are on one host and read each other's rows in shared memory: none travel")
    lines = [*head, "", table([_row(one, found) for one in found.sizes])]
    if rows := saving_rows(found.formats, sampling.wire):
        lines += ["", "shorter formats on the wire, in a step with the recipe's caches:", "", table(rows)]
    return "\n".join(lines)


def _row(one: SizeEstimate, found: Explanation) -> dict[str, object]:
    # The curve begins at alpha 0, whichever sizes were asked for.
    without = found.curve[0].remote_rows
    row: dict[str, object] = {
        "alpha": f"{one.alpha:.3g}",
        "kept rows": f"{one.kept_rows:,}",
        "memory": byte_size(one.memory_bytes),
        "remote rows": count(one.remote_rows),
        "of alpha 0": f"{100 * one.remote_rows / without:.3g} %" if without else "",
        "bytes": byte_size(one.remote_bytes),
    }
    if one.time is not None:
        row |= {
            "exchange s": one.time.exchange_s,
            "no pipeline s": one.time.seconds(pipelined=False),
            "pipeline s": one.time.seconds(pipelined=True),
        }
    return row | {"": ", ".join(name for name, size in found.marks.items() if size.alpha == one.alpha)}


def write_explanation_plot(found: Explanation, path: Path, *, title: str) -> None:
    """Draw the curves into a .png file: OSError where it cannot be written."""
    points = sorted([*found.curve, *found.sizes], key=lambda one: one.alpha)
    alphas = [one.alpha for one in points]
    times = [one.time for one in points if one.time is not None]
    blue, orange, green, purple, *_ = COLOURS
    figure, panels = new_figure(2 if times else 1)
    panels[0].plot(alphas, [one.remote_rows for one in points], color=blue, label="remote rows")
    panels[0].set(title="Rows that travel", ylabel="rows in an epoch, all ranks together")
    if times:
        for pipelined, colour, label in ((False, orange, "no pipeline"), (True, blue, "pipeline")):
            panels[1].plot(alphas, [time.seconds(pipelined=pipelined) for time in times], color=colour, label=label)
        panels[1].plot(alphas, [time.exchange_s for time in times], color="#888888", label="exchange of rows")
        panels[1].set(title="Time", ylabel="seconds of an epoch, without evaluation")
    lines = (("knee", purple, ":"), ("auto", green, "--"))
    for axes in panels:
        # Most happens where caches are small; Matplotlib also asks about what is left of the axis.
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
        axes.set(
            xlim=(0, found.marks["all"].alpha or 1), xlabel="alpha: remote rows kept by a rank, as a share of N / ranks"
        )
        axes.set_ylim(bottom=0)
        for name, colour, style in lines:
            if name in found.marks:
                alpha = found.marks[name].alpha
                axes.axvline(alpha, color=colour, linestyle=style, label=f"{name}, {alpha:.3g}")
        axes.legend(edgecolor="none")
    figure.suptitle(title, weight="bold")
    figure.savefig(path, format="png")
