"""A plan for people: as a TOML file to read and write, and as two small tables of text (by table, and by rank).

    [user_id]                       # one section for each table
    rank = 0                        # whole, on one rank

    [item_id]
    shards = [
      {rank = 0, rows = [0, 500000]},
      {rank = 1, rows = [500000, 1000000], columns = [0, 8]},
      {rank = 2, rows = [500000, 1000000], columns = [8, 16]},
    ]                               # no rows: all of them; no columns: all of them

    [country]
    replicated = true               # whole, on every rank

    [shop]
    replicated = [[0, 5000]]        # some rows on every rank, the others as above
    rank = 1                        # or shards = [...]; rank = 1 then means all other rows

Ranges are first and one after the last.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.comm.errors import PlanError, nearest_name
from windrow.partition.tables.plan import Plan, Range, Replica, Shard, TableSpec, rank_bytes, specs_by_name

__all__ = ["describe_plan", "read_plan", "write_plan"]

_TABLE_KEYS = ("rank", "shards", "replicated")
_SHARD_KEYS = ("rank", "rows", "columns")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_plan(path: Path, specs: Sequence[TableSpec]) -> Plan:
    """Read a plan of tables that give the ranges which the file leaves out, in the order of the file.

    Whether it covers the tables and fits the ranks is for `check_plan`.

    Raises:
        PlanError: there is no such file, it is not TOML, or a table, a key or a value is not right; the message names
            all of them, and for an unknown name the nearest.
    """
    named = specs_by_name(specs)
    shards: list[Shard] = []
    replicated: list[Replica] = []
    for table, section in _read_toml(path).items():
        if table not in named:
            raise PlanError(f"{path}: [{table}] is no table of this model. {nearest_name(table, named)}")
        place = f"{path}: [{table}]"
        _check_keys(section, _TABLE_KEYS, place)
        spec = named[table]
        copies = _replicas(section["replicated"], spec, place) if "replicated" in section else []
        others = [key for key in ("rank", "shards") if key in section]
        whole = [copy for copy in copies if copy.rows == (0, spec.rows)]
        if len(others) + bool(whole) > 1 or not (others or copies):
            raise PlanError(f"{place} needs one of the keys {', '.join(_TABLE_KEYS)}, got {_keys(section)}")
        replicated += copies
        if others:
            shards += _shards(section, spec, copies, place)
    return Plan(tuple(shards), tuple(replicated))


def write_plan(path: Path, plan: Plan, specs: Sequence[TableSpec]) -> None:
    """Write a plan that covers these tables so that `read_plan` gives it back; tables come in their own order.

    Raises:
        PlanError: the plan misses a table.
        OSError: the file cannot be written.
    """
    sections = ["# Where each embedding table lives. Ranges are first and one after the last.\n"]
    for spec in specs:
        lines = "\n".join(_body(plan, spec))
        sections.append(f"[{_key(spec.name)}]  # {spec.rows} rows x {spec.dim}, {plan.kind_of(spec.name)}\n{lines}\n")
    path.write_text("\n".join(sections), encoding="utf-8")


def _body(plan: Plan, spec: TableSpec) -> list[str]:
    copies, shards = plan.replicas_of(spec.name), plan.shards_of(spec.name)
    if [copy.rows for copy in copies] == [(0, spec.rows)]:
        return ["replicated = true"]
    lines = [f"replicated = {[list(copy.rows) for copy in copies]}"] if copies else []
    if len(shards) == 1 and shards[0].rows == (0, spec.rows) and shards[0].columns == (0, spec.dim):
        return [*lines, f"rank = {shards[0].rank}"]
    if not shards:
        return lines
    return [*lines, "shards = [", *(f"  {_inline(shard, spec)}," for shard in shards), "]"]


def _inline(shard: Shard, spec: TableSpec) -> str:
    parts = [f"rank = {shard.rank}"]
    if shard.rows != (0, spec.rows):
        parts.append(f"rows = {list(shard.rows)}")
    if shard.columns != (0, spec.dim):
        parts.append(f"columns = {list(shard.columns)}")
    return f"{{{', '.join(parts)}}}"


def _key(name: str) -> str:
    """A TOML key; JSON's escapes are TOML's, but for the one character that JSON may leave as it is."""
    quoted = json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
    return name if _BARE_KEY.fullmatch(name) else quoted


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"{path}: no such file. `windrow plan` writes one.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read as text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{path}: not valid TOML: {error}") from error


def _replicas(value: object, spec: TableSpec, place: str) -> list[Replica]:
    if value is True:
        return [Replica(spec.name, (0, spec.rows))]
    if not isinstance(value, list) or not value:
        raise PlanError(f"{place} replicated = {value!r}: expected true, or ranges of rows [[0, {spec.rows}]]")
    return [Replica(spec.name, _range(entry, "replicated", place)) for entry in value]


def _rest(spec: TableSpec, copies: Sequence[Replica]) -> list[Range]:
    """The rows between those that every rank holds."""
    bounds = [0, *(bound for rows in sorted(copy.rows for copy in copies) for bound in rows), spec.rows]
    return [(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]


def _shards(section: Mapping[str, Any], spec: TableSpec, copies: Sequence[Replica], place: str) -> list[Shard]:
    whole = (0, spec.rows), (0, spec.dim)
    if "rank" in section:
        rank = _rank(section["rank"], place)
        return [Shard(spec.name, rank, rows, (0, spec.dim)) for rows in _rest(spec, copies)]
    entries = section["shards"]
    if not isinstance(entries, list) or not entries:
        raise PlanError(f"{place} shards = {entries!r}: expected a list of {{rank = 0, rows = [0, {spec.rows}]}}")
    shards = []
    for number, entry in enumerate(entries):
        inside = f"{place} shards[{number}]"
        _check_keys(entry, _SHARD_KEYS, inside)
        if "rank" not in entry:
            raise PlanError(f"{inside} needs a rank, got {_keys(entry)}")
        rows, columns = (
            _range(entry[key], key, inside) if key in entry else default
            for key, default in zip(("rows", "columns"), whole, strict=True)
        )
        shards.append(Shard(spec.name, _rank(entry["rank"], inside), rows, columns))
    return shards


def _check_keys(section: object, known: tuple[str, ...], place: str) -> None:
    if not isinstance(section, Mapping):
        raise PlanError(f"{place} is {section!r}: expected the keys {', '.join(known)}")
    for key in section:
        if key not in known:
            raise PlanError(f"{place} has no key {key!r}. {nearest_name(key, known)}")


def _rank(value: object, place: str) -> int:
    if type(value) is not int:
        raise PlanError(f"{place} rank = {value!r}: expected the number of a rank")
    return value


def _range(value: object, key: str, place: str) -> Range:
    if not isinstance(value, list) or len(value) != 2 or any(type(bound) is not int for bound in value):
        raise PlanError(f"{place} {key} = {value!r}: expected [first, one after the last]")
    return value[0], value[1]


def _keys(section: Mapping[str, Any]) -> str:
    return ", ".join(section) or "none"


_MOST_RANKS_SHOWN = 8


def describe_plan(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> str:
    """What a checked plan puts where, as lines of text.

    By table: rows, dim, bytes of one copy, how it is cut and which ranks hold it. By rank: pieces (replicated ones
    count), bytes, pooled numbers that its pieces give per sample, and the lookups to expect per sample of the whole
    minibatch (of what is replicated: its share).
    """
    tables = [
        (s.name, f"{s.rows:,}", str(s.dim), f"{s.num_bytes:,}", plan.kind_of(s.name), _ranks(plan, s.name))
        for s in specs
    ]
    ranks = _rank_lines(plan, specs, world_size)
    by_table = _aligned(("table", "rows", "dim", "bytes", "plan", "ranks"), tables, left=(0, 4, 5))
    by_rank = _aligned(("rank", "pieces", "bytes", "dims", "lookups/sample"), ranks, left=())
    return "\n".join([*by_table, "", *by_rank])


def _rank_lines(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> list[tuple[str, ...]]:
    named = specs_by_name(specs)
    copies = [(named[replica.table], replica.rows) for replica in plan.replicated]
    lines: list[tuple[str, ...]] = []
    for rank, num_bytes in enumerate(rank_bytes(plan, specs, world_size)):
        shards = plan.shards_on(rank)
        dims = sum(shard.num_columns * len(named[shard.table].features) for shard in shards)
        dims += sum(spec.dim * len(spec.features) for spec, _ in copies)
        shares = [(stop - start) / spec.rows * spec.lookups_per_sample for spec, (start, stop) in copies]
        lookups = sum(shares) / world_size
        lookups += sum(
            named[shard.table].lookups_per_sample * shard.num_rows / named[shard.table].rows for shard in shards
        )
        pieces = len(shards) + len(copies)
        lines.append((str(rank), str(pieces), f"{num_bytes:,}", str(dims), f"{lookups:.2f}"))
    return lines


def _ranks(plan: Plan, table: str) -> str:
    if plan.replicas_of(table):
        return "all"
    ranks = sorted({shard.rank for shard in plan.shards_of(table)})
    shown = ", ".join(map(str, ranks[:_MOST_RANKS_SHOWN]))
    return shown if len(ranks) <= _MOST_RANKS_SHOWN else f"{shown}, ... ({len(ranks)})"


def _aligned(header: tuple[str, ...], lines: Sequence[tuple[str, ...]], *, left: tuple[int, ...]) -> list[str]:
    """Columns two blanks apart: text to the left, numbers to the right."""
    columns = list(zip(header, *lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *lines)
    ]
