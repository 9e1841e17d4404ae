"""Predict what travels in an epoch of full-graph training, in every format of messages, without training.

One process counts, part by part, the rows that each would ask the others for, and runs the model on two vertices to see
how wide they are before each layer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import Links
from windrow.comm.quantized_codec import QuantizedCodec
from windrow.comm.wire import Codec, WireOptions
from windrow.comm.wire_savings import FormatSaving, saving_rows, sum_savings
from windrow.gnn.full_graph import FullGraphOptions, first_layer_options
from windrow.gnn.halo import Arrival, Order, projects_first, wanted_rows
from windrow.gnn.halo_choice import NUMBER_BYTES, check_model, faster_method
from windrow.gnn.halo_methods import sampled_rows
from windrow.gnn.inference import block_of_range
from windrow.gnn.message_passing import Block
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.types import GraphTypes
from windrow.training.terminal import byte_size, table

__all__ = ["FormatEstimate", "FullGraphExplanation", "LayerRows", "describe_full_graph", "explain_full_graph"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRows:
    """What travels for one layer of the model."""

    rows: int
    """Over all ranks, each way."""
    columns: int
    """Of a row."""
    rows_times: int
    """How often rows travel in an epoch, after the first; 0: they are kept."""
    gradients_times: int
    """Likewise gradients; 0: the layer's input is not learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatEstimate:
    """What one format of messages means, over all ranks."""

    messages: str
    """Of rows and of their gradients."""
    bytes_sent: int
    """In an epoch, after the first."""
    seconds: float | None
    """That the network needs for them, layer after layer; None where it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullGraphExplanation:
    """What travels in full-graph training."""

    num_vertices: int
    num_parts: int
    """Ranks."""
    largest_part: int
    """Vertices of it: what a rank holds a row for in every layer."""
    source_rows: int
    """Sources that other ranks own, over all ranks."""
    partial_sums_rows: int
    """What travels instead where layers add rows up and sums are sent where they are fewer."""
    layers: tuple[LayerRows, ...]
    formats: tuple[FormatEstimate, ...]
    """From the longest to the shortest."""
    gradient_bytes: int
    """Of the model's gradients, float32, which are summed over the ranks."""
    gradient_seconds: float | None
    """Of that sum, as float32; None where the network is not known."""
    sums: tuple[FormatSaving, ...]
    """What shorter formats of that sum would save; none where the network is not known."""
    choice: str
    """What method "auto" comes to, and why; empty for others, or where the network is not known."""


def explain_full_graph(
    graph: PartitionedGraph,
    model: ModelOptions,
    options: FullGraphOptions,
    *,
    links: Links | None = None,
    learnt_columns: int = 0,
    summed_numbers: int = 0,
) -> FullGraphExplanation:
    """Work out what travels, for all parts of a graph in this one process.

    Args:
        graph: topology; of its features, those of this part, only the shape and the share of zeros count.
        model: that would be trained.
        options: likewise; each format of messages is shown, whichever these name.
        links: of a network with one rank for each part; None where it is not known.
        learnt_columns: of rows of vertices that are learnt, behind the features.
        summed_numbers: what these are computed from on every rank, so that its gradients are summed with the model's.

    Raises:
        RecipeError: its method slices features, whose bytes are another sum, or the model does not go with it.

    Cost: for each part a sort of its edges, and the vertex covers of `windrow.gnn.halo.Halo`.
    """
    if options.method == "feature_slices":
        raise RecipeError(
            'full_graph.method = "feature_slices" sends no rows of a halo: explain "exact", or "auto" with --network, '
            "which compares the two"
        )
    columns, learns_rows = graph.num_features + learnt_columns, learnt_columns > 0
    built = build_model(model, in_features=columns, out_features=graph.num_outputs, seed=0, types=graph.types)
    check_model(options.method, built, recompute=options.recompute)
    counts = _rows_of_pairs(graph, {False, options.partial_sums})
    layers, pairs = [], []
    nonzero_share = float(graph.features.count_nonzero()) / max(1, graph.features.numel())
    first, _ = first_layer_options(built, options, nonzero_share, learns_rows=learns_rows)
    inputs = torch.zeros(1, columns, requires_grad=learns_rows)
    for seen in _widths(built, inputs, [first, *[options] * (model.num_layers - 1)], graph.types):
        of_layer = counts[options.partial_sums and seen.adds_up]
        if options.method == "boundary_sampling" and not seen.is_kept:
            of_layer = np.vectorize(sampled_rows)(of_layer, options.boundary_share)
        again = options.recompute and not seen.adds_up
        layers.append(
            LayerRows(
                rows=int(of_layer.sum()),
                columns=seen.columns,
                rows_times=0 if seen.is_kept else 2 if again else 1,
                gradients_times=int(seen.learnt),
            )
        )
        pairs.append(of_layer)
    weights = summed_numbers + sum(weight.numel() for weight in built.parameters())
    gradient_bytes = NUMBER_BYTES * weights
    choice = ""
    if options.method == "auto" and links is not None:
        method, why = faster_method(links, counts[options.partial_sums].tolist(), graph.offsets, built)
        choice = f"method: {method}, since {why}"
    return FullGraphExplanation(
        num_vertices=graph.num_vertices,
        num_parts=graph.book.num_parts,
        largest_part=max(map(graph.book.part_size, range(graph.book.num_parts))),
        source_rows=int(counts[False].sum()),
        partial_sums_rows=int(counts[options.partial_sums].sum()),
        layers=tuple(layers),
        formats=tuple(_estimate(*form, layers, pairs, links) for form in _formats().items()),
        gradient_bytes=gradient_bytes,
        gradient_seconds=None if links is None else predict_all_reduce(links, gradient_bytes),
        sums=() if links is None else tuple(sum_savings(links, weights)),
        choice=choice,
    )


def describe_full_graph(
    found: FullGraphExplanation, options: FullGraphOptions, wire: WireOptions, *, network: str
) -> str:
    """Lay an explanation out, which docs/full-graph.md explains; `network` says which one times are of."""
    saved = found.source_rows - found.partial_sums_rows
    lines = [
        f"{found.num_vertices:,} vertices in {found.num_parts} parts, at most {found.largest_part:,} in one",
        f"{found.source_rows:,} rows of sources belong to other ranks"
        + (f"; {saved:,} fewer ({saved / max(1, found.source_rows):.0%}) with sums" if options.partial_sums else ""),
        *(f"layer {number}: {_in_words(layer)}" for number, layer in enumerate(found.layers)),
    ]
    sums = f"gradients of the model: {byte_size(found.gradient_bytes)}, summed over ranks"
    if found.gradient_seconds is None:
        lines += [
            sums,
            "no times, since the network is not known: name one by --network FILE, or measure this one's by",
            f"  mpirun -n {found.num_parts} windrow network",
        ]
    else:
        lines += [f"{sums} in {found.gradient_seconds:.3g} s", f"network: {network}"]
    longest = found.formats[0]
    rows = []
    for one in found.formats:
        row: dict[str, object] = {"messages": one.messages, "bytes an epoch": byte_size(one.bytes_sent)}
        row["of fp32"] = f"{100 * one.bytes_sent / max(1, longest.bytes_sent):.3g} %"
        if one.seconds is not None:
            row["network s"] = float(f"{one.seconds:.3g}")
        rows.append(row)
    if found.choice:
        lines.append(found.choice)
    if options.method == "skip_broadcasts":
        lines.append("at most, since parts that have not moved enough are skipped")
    if options.messages in {"adaptive", "random"}:
        widths = sorted(options.widths)
        lines.append(f"{options.messages} messages are between int{widths[0]} and int{widths[-1]}")
    lines += ["", table(rows)]
    if found.sums:
        lines += ["", "shorter formats of the gradients' sums", "", table(saving_rows(found.sums, wire))]
    return "\n".join(lines)


def _in_words(layer: LayerRows) -> str:
    rows = ("", "rows", "rows twice")[layer.rows_times]
    travelling = " and ".join(filter(None, (rows, "gradients" * layer.gradients_times)))
    return f"{layer.rows:,} rows of {layer.columns} columns" + (f": {travelling}" if travelling else ", once in a run")


def _estimate(
    name: str, codec: Codec, layers: Sequence[LayerRows], pairs: Sequence[np.ndarray], links: Links | None
) -> FormatEstimate:
    num_bytes, seconds = 0, 0.0
    for layer, of_layer in zip(layers, pairs, strict=True):
        sent = of_layer * codec.wire_row_bytes((layer.columns,), torch.float32)
        num_bytes += int(sent.sum()) * (layer.rows_times + layer.gradients_times)
        if links is not None:
            forward, backward = predict_all_to_all(links, sent), predict_all_to_all(links, sent.T)
            seconds += layer.rows_times * forward + layer.gradients_times * backward
    return FormatEstimate(messages=name, bytes_sent=num_bytes, seconds=None if links is None else seconds)


def _formats() -> dict[str, Codec]:
    """From the longest to the shortest."""
    return {"fp32": Codec("fp32"), "bf16": Codec("bf16")} | {
        f"int{bits}": QuantizedCodec(bits) for bits in (8, 4, 2, 1)
    }


def _rows_of_pairs(graph: PartitionedGraph, covers: Iterable[bool]) -> dict[bool, np.ndarray]:
    """int64 [parts, parts], rows that each rank sends to each, with a vertex cover or without."""
    asked: dict[bool, list[list[int]]] = {cover: [] for cover in covers}
    for start, stop in pairwise(graph.offsets):
        block, sources = block_of_range(graph, None, None, start, stop)
        for cover, counts in asked.items():
            counts.append(wanted_rows(block, sources[block.num_dst :], graph.offsets, cover=cover).counts)
    return {cover: np.array(counts, np.int64).T for cover, counts in asked.items()}


class _Seen:
    """An exchange between two ranks of a vertex each, which notes what travels."""

    def __init__(self, order: Order, *, may_keep: bool) -> None:
        self._order, self._may_keep = order, may_keep
        self.columns, self.adds_up, self.learnt, self.is_kept = 0, False, False, False

    def projects_first(self, in_features: int, out_features: int, *, learnt: bool) -> bool:
        return projects_first(self._order, in_features, out_features, learnt=learnt, keeps=self._may_keep)

    def start_sums(self, x: Tensor, *, weighted: bool) -> Arrival:
        del weighted
        self.columns, self.adds_up, self.learnt = x.shape[1], True, x.requires_grad
        self.is_kept = self._may_keep and not x.requires_grad
        return lambda: x

    def rows(self, x: Tensor) -> Tensor:
        self.columns, self.learnt = x.flatten(1).shape[1], x.requires_grad
        return torch.cat([x, x])


def _widths(model: GNN, inputs: Tensor, options: Sequence[FullGraphOptions], types: GraphTypes | None) -> list[_Seen]:
    """What each layer sends, each with its own options."""
    seen = [_Seen(each.order, may_keep=each.keep_first and layer == 0) for layer, each in enumerate(options)]
    ones = torch.ones(2, dtype=torch.int64)
    typed: dict[str, Any] = {}
    if types is not None and types.edges:
        source_types = torch.tensor(types.ends[0][::-1], dtype=torch.uint8)
        typed = {"edge_type": torch.zeros(1, dtype=torch.int16), "source_types": source_types, "types": types}
    blocks = [
        Block(
            num_src=2,
            num_dst=1,
            indptr=torch.tensor([0, 1]),
            indices=ones[:1],
            source_degrees=ones,
            edge_weight=torch.ones(1) if model.needs_edge_weights else None,
            **typed,
            exchange=exchange,
        )
        for exchange in seen
    ]
    model(blocks, inputs)
    return seen
