"""Predict what caches of several sizes would save a graph recipe, without training: rows, bytes, and seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windrow.caching.knee import knee_of_curve, least_that_suffices
from windrow.comm.links import Links
from windrow.gnn.partitioned import PartitionedGraph
from windrow.launch.cache_survey import CacheSize, survey_caches
from windrow.launch.epoch_estimate import ID_BYTES, EpochTime, StepWork, estimate_epoch
from windrow.launch.part_ranking import row_sizes
from windrow.launch.recipe import Recipe

__all__ = ["USUAL_ALPHAS", "Explanation", "SizeEstimate", "explain"]

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
    pipelined: bool
    """Whether the recipe has a pipeline."""
    sizes: tuple[SizeEstimate, ...]
    """From the smallest alpha to the largest: those asked for, and the four below."""
    curve: tuple[SizeEstimate, ...]
    """Many alphas, up to the last that is worth its memory."""
    knee: SizeEstimate
    """Where more memory hardly helps any more: the least alpha whose epoch time is within 1 % of the shortest; where
    times are not known, the point at which the curve of rows lies furthest below a straight line."""
    automatic: SizeEstimate
    """What training keeps with ``cache.alpha = "auto"`` and the recipe's ``cache.memory_gib``."""
    everything: SizeEstimate
    """Every rank keeps every row."""
    chosen: SizeEstimate
    """What training keeps with the recipe as it is."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def explain(
    graph: PartitionedGraph,
    recipe: Recipe,
    *,
    alphas: Sequence[float] = USUAL_ALPHAS,
    links: Links | None = None,
    work: StepWork | None = None,
) -> Explanation:
    """Work out what caches would save, for all parts of a graph in this one process.

    Args:
        graph: topology and training vertices; of its features only shape and dtype count.
        recipe: as it would be trained.
        alphas: replication factors to show; those that would keep everything anyway are left out.
        links: of a network with one rank for each part; None where it is not known.
        work: of a step; None where the network is not known.

    Returns:
        Everything that is expected.
    """
    parts, vertices = graph.book.num_parts, graph.num_vertices
    row_bytes, wire_row_bytes = row_sizes(recipe.sampler, graph.features)
    full = max(vertices - graph.book.part_size(part) for part in range(parts)) * parts / vertices
    shown = [alpha for alpha in alphas if alpha < full]
    on_curve = (full * np.linspace(0.0, 1.0, CURVE_POINTS) ** 2).tolist()
    given = [] if isinstance(recipe.cache.alpha, str) else [recipe.cache.alpha]
    survey = survey_caches(graph, recipe, [*shown, *on_curve, *given])

    def estimate(size: CacheSize) -> SizeEstimate:
        rows = float(size.asked.sum())
        time = None
        if links is not None and work is not None:
            asked = None if size.everything else size.asked / survey.steps
            time = estimate_epoch(work, links, asked, wire_row_bytes, steps=survey.steps)
        return SizeEstimate(
            alpha=size.alpha,
            kept_rows=int(size.kept.max()),
            memory_bytes=int(size.kept.max()) * wire_row_bytes,
            remote_rows=rows,
            remote_bytes=rows * (ID_BYTES + wire_row_bytes),
            time=time,
        )

    estimates = [estimate(size) for size in survey.sizes]
    worth_it = [
        one for one in estimates[len(shown) : len(shown) + CURVE_POINTS] if one.kept_rows <= survey.worthwhile
    ]
    pipelined = recipe.pipeline.depth > 0
    knee = _knee(worth_it, pipelined=pipelined)
    automatic, everything = estimate(survey.automatic), estimate(survey.everything)
    chosen = estimates[-1] if given else automatic
    by_alpha = {one.alpha: one for one in (*estimates[: len(shown)], everything, knee, automatic, chosen)}
    return Explanation(
        num_vertices=vertices,
        num_parts=parts,
        steps=survey.steps,
        input_rows=survey.input_rows,
        row_bytes=row_bytes,
        wire_row_bytes=wire_row_bytes,
        work=work,
        pipelined=pipelined,
        sizes=tuple(by_alpha[alpha] for alpha in sorted(by_alpha)),
        curve=tuple(worth_it),
        knee=knee,
        automatic=automatic,
        everything=everything,
        chosen=chosen,
    )


def _knee(curve: Sequence[SizeEstimate], *, pipelined: bool) -> SizeEstimate:
    seconds = [one.time.seconds(pipelined=pipelined) for one in curve if one.time is not None]
    if seconds:
        return curve[least_that_suffices(seconds, tolerance=HARDLY_SLOWER)]
    return curve[knee_of_curve([one.kept_rows for one in curve], [one.remote_rows for one in curve])]
