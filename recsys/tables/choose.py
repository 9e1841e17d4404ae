"""Which table gets which form, so that all of them fit into some bytes.

What a byte is worth depends on how often it is read. All rows of all tables, in the order of lookups for each byte of
theirs, are kept as they are until their part of the budget is spent; a table all of whose rows are kept is dense, which
small ones are by themselves. The rest of the budget is what all others share in the compressed form.

    rows by lookups a byte    9 9 8 8 8 7 | 5 3 3 2 1 1 1 1 1 1 ...
                              kept as they are    computed from what is left of the budget
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import TableSpec
from windrow.recsys.tables.compressed import make_forms, shared_bytes
from windrow.recsys.tables.hot import ROOM
from windrow.recsys.tables.options import EmbeddingConfig, FormName, TableOptions, TableOverrides

__all__ = ["ChosenForm", "choose_forms", "form_rows", "with_forms"]

ROUNDS = 40
"""Halvings of the compression that is looked for."""
PLACE_BYTES = 8
"""Of a row that is kept as it is: which one it is. A count is another row and a number."""
RANKED = 0.99
"""Of the lookups that the best choice of rows would serve: the first rows are good enough then."""
WIDTH_POWER = 0.3
"""Narrow rows of a table of n rows are as wide as n to minus this power says beside other tables (Ginart et al., Mixed
Dimension Embeddings, ISIT 2021, which takes 0.3 for logs of clicks): rows of small tables are looked up more often."""
MOST = 1e9
"""Compression beyond which nothing fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenForm:
    """How one table is stored, and what that means.

    Attributes:
        table: name.
        form: how.
        compression: numbers of the dense table for each that is stored, without hot rows.
        hot_rows: rows that are kept as they are.
        hot_bytes: their vectors.
        hot_counted: whether they have to be found by counting, since they are not the first rows.
        dense_bytes: weights and optimiser state of the dense table.
        num_bytes: those of what is stored: its share, where tables share.
        kept_lookups: share of lookups that read rows that are kept as they are; 1 of a dense table.
    """

    table: str
    form: FormName
    compression: float
    hot_rows: int
    hot_bytes: int
    hot_counted: bool
    dense_bytes: int
    num_bytes: int
    kept_lookups: float

    def settings(self) -> dict[str, Any]:
        """What the recipe's section [tables.NAME] says of it."""
        if self.form == "dense":
            return {"form": "dense"}
        hot = {"hot_bytes": self.hot_bytes, "hot_counted": self.hot_counted} if self.hot_rows else {}
        return {"form": self.form, "compression": self.compression, **hot}


def choose_forms(
    tables: Sequence[TableSpec],
    counts: Mapping[str, npt.NDArray[np.int64]],
    budget_bytes: int,
    *,
    options: TableOptions | None = None,
    form: FormName = "robe",
    kept_share: float = 0.5,
) -> list[ChosenForm]:
    """Choose a form for each table, so that weights and optimiser state of all fit into a budget.

    Args:
        tables: dense ones, as `windrow.recsys.sharded.collection.table_specs` describes them.
        counts: of each table how often each row is looked up, [rows]; tables without counts are taken to be looked up
            alike in all rows, as often as ``lookups_per_sample`` says beside the others.
        budget_bytes: for all tables together, on one rank.
        options: what else holds for them, such as ``robe_block`` and the optimiser.
        form: of tables that are not dense. All are compressed alike, but narrow ones: the larger, the more.
        kept_share: of the budget, for rows that are kept as they are; less where forms need more than the rest.

    Raises:
        RecipeError: the budget is too small for any compression in this form, with the shortfall.

    Cost: sorts the counts of each table.
    """
    base = replace(options or TableOptions(), form="dense", per_table={}, pretrained={}, code_file=None)
    rows = {spec.name: spec.rows for spec in tables}
    dense = {spec.name: replace(spec, compressed_bytes=None).num_bytes for spec in tables}

    def choice(spec: TableSpec, number: int) -> ChosenForm:
        found = counts.get(spec.name)
        is_dense = number >= spec.rows or not _can_be_smaller(spec, replace(base, form=form, compression=MOST))
        number = spec.rows if is_dense else number
        return ChosenForm(
            table=spec.name,
            form="dense" if is_dense else form,
            compression=1.0,
            hot_rows=0 if is_dense else number,
            hot_bytes=0 if is_dense else number * spec.dim * torch.float32.itemsize,
            hot_counted=number > 0 and not is_dense and found is not None and not _is_ranked(found, number),
            dense_bytes=dense[spec.name],
            num_bytes=dense[spec.name],
            kept_lookups=number / spec.rows if found is None else _share_of_most(found, number),
        )

    def at(chosen: Sequence[ChosenForm], compression: float) -> list[ChosenForm]:
        least = min((rows[one.table] for one in chosen if one.form != "dense"), default=1)
        power = WIDTH_POWER if form == "narrow" else 0.0
        chosen = [
            one if one.form == "dense" else replace(one, compression=compression * (rows[one.table] / least) ** power)
            for one in chosen
        ]
        changed = with_forms(base, chosen)
        sizes: dict[str, int] = {}
        for found in make_forms([EmbeddingConfig(spec.rows, spec.dim, spec.name) for spec in tables], changed):
            sizes |= shared_bytes(found, changed)
        return [replace(one, num_bytes=sizes.get(one.table, one.num_bytes)) for one in chosen]

    def fits(chosen: Sequence[ChosenForm], compression: float) -> bool:
        try:
            return sum(one.num_bytes for one in at(chosen, compression)) <= budget_bytes
        except RecipeError:  # No smaller than the table.
            return False

    # What forms need at least may leave less for rows as they are.
    for share in (kept_share, kept_share / 2, kept_share / 4, 0.0):
        kept = _kept_rows(tables, counts, dense, budget_bytes, share)
        # Once for all compressions: it sorts counts.
        chosen = [choice(spec, kept[spec.name]) for spec in tables]
        if all(one.form == "dense" for one in chosen):
            return chosen
        if fits(chosen, MOST):
            break
    else:
        least = sum(one.num_bytes for one in at(chosen, MOST))
        raise RecipeError(
            f'{budget_bytes} bytes are too few for {len(tables)} tables: in form "{form}" they need {least} at least, '
            f"{least - budget_bytes} more. Take a larger budget, or another form"
        )
    low, high = 1.0, MOST
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(chosen, middle) else (middle, high)
    return at(chosen, high)


def _can_be_smaller(spec: TableSpec, options: TableOptions) -> bool:
    """Whether a table alone can be stored in this form; in an array of ROBE, which many share, every table can."""
    if options.form == "robe":
        return True
    try:
        make_forms([EmbeddingConfig(spec.rows, spec.dim, spec.name)], options)
    except RecipeError:
        return False
    return True


def with_forms(options: TableOptions, chosen: Sequence[ChosenForm]) -> TableOptions:
    """The same options with what was chosen for each table."""
    per_table = dict(options.per_table)
    for found in chosen:
        own = per_table.get(found.table, TableOverrides())
        per_table[found.table] = replace(own, **found.settings())
    return replace(options, per_table=per_table)


def form_rows(chosen: Sequence[ChosenForm]) -> list[dict[str, object]]:
    """What was chosen, a row for each table, for people to read."""
    return [
        {
            "table": found.table,
            "form": found.form,
            "dense bytes": f"{found.dense_bytes:,}",
            "bytes": f"{found.num_bytes:,}",
            "hot rows": f"{found.hot_rows:,}",
            "lookups of rows as they are": f"{found.kept_lookups:.1%}",
        }
        for found in chosen
    ]


def _kept_rows(
    tables: Sequence[TableSpec],
    counts: Mapping[str, npt.NDArray[np.int64]],
    dense: Mapping[str, int],
    budget_bytes: int,
    kept_share: float,
) -> dict[str, int]:
    """Of each table how many rows, those that are looked up most, are kept as they are."""
    if sum(dense.values()) <= budget_bytes:
        return {spec.name: spec.rows for spec in tables}
    worth, size, owner = [], [], []
    samples = max(
        (int(counts[spec.name].sum()) / max(spec.lookups_per_sample, 1.0) for spec in tables if spec.name in counts),
        default=1.0,
    )
    for number, spec in enumerate(tables):
        is_ranked = spec.name not in counts or _is_ranked(counts[spec.name], max(spec.rows // 100, 1))
        row_bytes = dense[spec.name] / spec.rows + (PLACE_BYTES if is_ranked else PLACE_BYTES * (1 + 2 * ROOM))
        if spec.name in counts:
            found = np.sort(counts[spec.name])[::-1]
            found = found[found > 0]
        else:
            found = np.full(spec.rows, samples * spec.lookups_per_sample / spec.rows)
        worth.append(found / row_bytes)
        size.append(np.full(len(found), row_bytes))
        owner.append(np.full(len(found), number))
    order = np.argsort(-np.concatenate(worth), kind="stable")
    spent = np.concatenate(size)[order].cumsum()
    taken = np.concatenate(owner)[order][: int(np.searchsorted(spent, kept_share * budget_bytes, side="right"))]
    numbers = np.bincount(taken, minlength=len(tables))
    return {spec.name: int(number) for spec, number in zip(tables, numbers, strict=True)}


def _share_of_most(counts: npt.NDArray[np.int64], kept: int) -> float:
    """Share of lookups of the rows that are looked up most."""
    return float(np.sort(counts)[::-1][:kept].sum() / max(int(counts.sum()), 1))


def _is_ranked(counts: npt.NDArray[np.int64], kept: int) -> bool:
    """Whether the first rows are those that are looked up most, but for a few that are looked up little."""
    return bool(counts[:kept].sum() >= RANKED * _share_of_most(counts, kept) * counts.sum())
