"""How long one rank looks its tables up and lets them learn: models of the time of a set of pieces, and their files.

Both designs see a piece as a vector, add up vectors over the pieces of a rank, so that their order cannot matter, and
have a small network turn the sum into seconds of forward and backward pass together.

``published`` is NeuroShard's (Zha et al., MLSys 2023)::

    seconds(S) = head(sum over pieces of body(x))          body 21-128-32, head 32-64-1

Its 20 features, and one more, since minibatches differ in size here.

``corrected`` is ours: times a processor needs for so many bags, lookups, different rows, and numbers in these add up
(the roof line: each is bound by instructions or by bytes), and the networks say how far that is off::

    roof(x)    = a + b bags + c lookups + d lookups D + e distinct + f distinct D + g bags D         all >= 0
    seconds(S) = (base + roof(S)) * exp(head(mean over pieces, weighted by roof(x), of body(x)))

A mean stays where it was for any number of pieces, so that sets larger than those that were measured are no leap in the
dark; and where the networks know nothing they leave the sum of times as it is. On CPUs, which look one table up after
another, times do add up: what a network learns beside that is no nearer to what was measured, and a search finds plans
that it is wrong about. So the model that ships has none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, StoreError
from windrow.comm.numpy_files import load_arrays
from windrow.partition.atomic_writes import open_atomically
from windrow.partition.tables.access import REUSE_BINS, asked, expected_distinct, expected_reuse, steps_of
from windrow.partition.tables.plan import Range, TableSpec

__all__ = [
    "FEATURES",
    "ComputeModel",
    "Design",
    "Layers",
    "Piece",
    "forward",
    "inputs_of",
    "piece_features",
    "roof_terms",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Layers: TypeAlias = tuple[tuple[Floats, Floats], ...]
"""Weights [inputs, outputs] and bias [outputs] of linear layers, a ReLU behind each but the last."""
Design: TypeAlias = Literal["published", "corrected"]

FORMAT_VERSION = 1
FEATURES = ("bags", "lookups", "distinct", "dim", "rows", *(f"bin_{number}" for number in range(REUSE_BINS)))
"""Of a piece in one minibatch of all ranks: see `piece_features`."""
CORRECTION = 1.0
"""The networks of ``corrected`` change a time by a factor of e at most."""


class Piece(NamedTuple):
    """A block of rows and columns of a table, wherever it is."""

    table: str
    rows: Range
    columns: Range
    copied: tuple[int, ...] = ()
    """By octave of the table's rows, of how many every rank has a copy; these are the copies, or the others."""

    @property
    def num_rows(self) -> int:
        """Height."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Width."""
        return self.columns[1] - self.columns[0]


def piece_features(
    spec: TableSpec,
    rows: Range,
    num_columns: int,
    samples: float,
    *,
    ranks: int = 1,
    replicated: bool = False,
    copied: Sequence[int] = (),
) -> Floats:
    """`FEATURES` of a piece of a table when so many samples of each of some ranks are looked up: [22].

    ``bags`` are lists of ids, unpooled ids, and of a piece on one rank without all rows those that have one of its own;
    ``lookups`` the ids in these whose rows the piece has; ``distinct`` the different rows among them; and the bins how
    often rows are looked up again (`expected_reuse`).
    """
    steps = steps_of(spec, rows, copied=copied, are_copies=replicated)
    lookups = ranks * samples * spec.lookups_per_sample
    ids, bags = asked(spec, rows, samples, replicated=replicated, copied=copied)
    found = [ranks * bags, ranks * ids, expected_distinct(steps, lookups), num_columns, rows[1] - rows[0]]
    return np.concatenate([found, expected_reuse(steps, lookups)])


def roof_terms(features: Floats) -> Floats:
    """What the times of pieces are in proportion to: [n, 7] of [n, 22] features; the first is 1."""
    bags, lookups, distinct, dim = features[:, :4].T
    return np.stack([np.ones_like(bags), bags, lookups, lookups * dim, distinct, distinct * dim, bags * dim], axis=1)


def inputs_of(design: Design, features: Floats) -> Floats:
    """What a body sees of [n, 22] features, before they are standardised."""
    bags, lookups, distinct, dim, rows = features[:, :5].T
    if design == "published":
        shape = [dim, lookups / np.maximum(bags, 1), rows, np.log2(1 + bags)]
    else:
        shape = [np.log2(1 + found) for found in (dim, lookups, distinct, rows, bags, distinct * dim)]
    return np.column_stack([features[:, 5:], *shape])


def forward(layers: Layers, values: Floats) -> Floats:
    """A network of linear layers and ReLUs: [n, outputs] of [n, inputs]."""
    for number, (weight, bias) in enumerate(layers):
        values = values @ weight + bias
        if number < len(layers) - 1:
            values = np.maximum(values, 0.0)
    return values


@dataclass(frozen=True, kw_only=True)
class ComputeModel:
    """Seconds of forward and backward pass of a set of pieces on one rank."""

    design: Design
    """See above."""
    mean: Floats
    """[inputs] of what the body sees, in the data that it learnt from."""
    deviation: Floats
    """[inputs] likewise."""
    body: Layers
    """Two layers, both with a ReLU behind."""
    head: Layers
    """Two layers."""
    roof: Floats
    """[8] seconds for each of `roof_terms` and, at the end, of any set at all; zeros for ``published``."""
    origin: Mapping[str, Any]
    """What it was trained on: hardware, versions, threads, and how far off it is."""

    @property
    def width(self) -> int:
        """Numbers in the vector of a piece."""
        return len(self.head[0][1]) + 1

    def vectors(self, features: Floats, more: Floats | float = 0.0) -> Floats:
        """What adds up over pieces: [n, width] of [n, 22] features; the last column is the roof, or the number 1.

        The rest has gone through the head's first weights: these act on each piece of a sum alike. Seconds that come on
        top, [n], add to the roof; ``published`` has no place for them.
        """
        inputs = (inputs_of(self.design, features) - self.mean) / self.deviation
        found = np.maximum(forward(self.body, inputs), 0.0) @ self.head[0][0]
        weight = np.ones(len(features)) if self.design == "published" else roof_terms(features) @ self.roof[:-1]
        if self.design == "corrected":
            found = found * weight[:, None]
            weight = weight + more
        return np.column_stack([found, weight])

    def seconds(self, sums: Floats) -> Floats:
        """Of each set of pieces, [n], from the sum of their vectors, [n, width]; an empty set takes none."""
        weight, (_, bias) = sums[:, -1], self.head[0]
        share = np.ones_like(weight) if self.design == "published" else 1 / np.maximum(weight, 1e-30)
        found = forward(self.head[1:], np.maximum(sums[:, :-1] * share[:, None] + bias, 0.0))[:, 0]
        if self.design == "corrected":
            found = (self.roof[-1] + weight) * np.exp(np.clip(found, -CORRECTION, CORRECTION))
        return np.where(weight > 0, np.maximum(found, 0.0), 0.0)

    def of_sets(self, sets: Sequence[Floats]) -> Floats:
        """Seconds of sets of pieces, from the features [pieces, 22] of each."""
        return self.seconds(np.stack([self.vectors(features).sum(axis=0) for features in sets]))

    def times(self, factor: float) -> "ComputeModel":
        """The same with all seconds multiplied."""
        *first, (weight, bias) = self.head
        if self.design == "corrected":
            return replace(self, roof=self.roof * factor)
        return replace(self, head=(*first, (weight * factor, bias * factor)))

    def save(self, path: Path) -> None:
        """Write it as arrays and JSON (``.npz``, no pickle)."""
        layers = {
            f"{part}.{number}.{name}": array
            for part, of_part in (("body", self.body), ("head", self.head))
            for number, layer in enumerate(of_part)
            for name, array in zip(("weight", "bias"), layer, strict=True)
        }
        about = json.dumps({"format_version": FORMAT_VERSION, "design": self.design, "origin": dict(self.origin)})
        arrays: dict[str, Any] = {name: array.astype(np.float32) for name, array in layers.items()}
        arrays |= {"mean": self.mean, "deviation": self.deviation, "roof": self.roof, "about": np.array(about)}
        with open_atomically(path) as file:
            np.savez_compressed(file, **arrays)

    @staticmethod
    def load(path: Path) -> "ComputeModel":
        """Read what `save` wrote.

        Raises:
            StoreError: it is not there, damaged, or of another version.
        """
        cure = "write it by `windrow pretrain-cost`, or leave plan.cost_model out for the one that comes with windrow"
        try:
            arrays = load_arrays(path)
            about = json.loads(str(arrays["about"]))
            if about["format_version"] != FORMAT_VERSION:
                raise StoreError(f"{path}: format {about['format_version']}, expected {FORMAT_VERSION}: {cure}")

            def layers(part: str) -> Layers:
                return tuple(
                    (arrays[f"{part}.{n}.weight"].astype(np.float64), arrays[f"{part}.{n}.bias"].astype(np.float64))
                    for n in range(2)
                )

            return ComputeModel(
                design=about["design"],
                mean=arrays["mean"],
                deviation=arrays["deviation"],
                body=layers("body"),
                head=layers("head"),
                roof=arrays["roof"],
                origin=about["origin"],
            )
        except (DataError, ValueError, KeyError) as error:
            raise StoreError(f"{path}: no cost model ({error}): {cure}") from error
