"""A plan as a TOML file, to read and write.

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

    [coupon]
    rank = 2
    copied = [17, 4711, 90210]         # copies of these rows on every rank, which looks them up at home

Ranges are first and one after the last. ``replica_groups = 2`` before the first section: two groups of ranks hold all
tables each, and the file names the ranks of the first.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.comm.errors import PlanError, nearest_name
from windrow.partition.tables.plan import Copies, Plan, Range, Replica, Shard, TableSpec, specs_by_name

__all__ = ["read_plan", "write_plan"]

_GROUPS = "replica_groups"
_TABLE_KEYS = ("rank", "shards", "replicated")
_COPIED = "copied"
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
    listed: list[Copies] = []
    content = _read_toml(path)
    # A table may have this name, too.
    groups = 1 if isinstance(content.get(_GROUPS), Mapping) else content.pop(_GROUPS, 1)
    if type(groups) is not int or groups < 1:
        raise PlanError(f"{path}: {_GROUPS} = {groups!r}: expected the number of groups that hold all tables")
    for table, section in content.items():
        place = f"{path}: [{table}]"
        if table not in named:
            raise PlanError(f"{place} is no table of this model. {nearest_name(table, named)}")
        _check_keys(section, (*_TABLE_KEYS, _COPIED), place)
        spec = named[table]
        copies = _copies(section["replicated"], spec, place) if "replicated" in section else []
        given = {"rank", "shards"} & section.keys()
        if len(given) + ((0, spec.rows) in copies) > 1 or not (given or copies):
            keys = ", ".join(section) or "none"
            raise PlanError(f"{place} needs one of the keys {', '.join(_TABLE_KEYS)}, got {keys}")
        replicated += [Replica(table, rows) for rows in copies]
        if _COPIED in section:
            listed.append(Copies(table, _ids(section[_COPIED], place)))
        if "shards" in section:
            shards += _shards(section["shards"], spec, place)
        elif "rank" in section:
            _check_rank(section["rank"], place)
            shards += [Shard(table, section["rank"], rows, (0, spec.dim)) for rows in _rest(spec, copies)]
    return Plan(tuple(shards), tuple(replicated), groups, tuple(listed))


def write_plan(path: Path, plan: Plan, specs: Sequence[TableSpec]) -> None:
    """Write a plan so that `read_plan` gives it back, tables in their own order; PlanError where it misses one."""
    sections = ["# Where each embedding table lives. Ranges are first and one after the last.\n"]
    if plan.replica_groups > 1:
        sections.append(f"{_GROUPS} = {plan.replica_groups}\n")
    for spec in specs:
        lines = "\n".join(_body(plan, spec))
        sections.append(f"[{_key(spec.name)}]  # {spec.rows} rows x {spec.dim}, {plan.kind_of(spec.name)}\n{lines}\n")
    path.write_text("\n".join(sections), encoding="utf-8")


def _body(plan: Plan, spec: TableSpec) -> list[str]:
    copies, shards = plan.replicas_of(spec.name), plan.shards_of(spec.name)
    if [copy.rows for copy in copies] == [(0, spec.rows)]:
        return ["replicated = true"]
    lines = [f"replicated = {[list(copy.rows) for copy in copies]}"] if copies else []
    if copied := plan.copied(spec.name):
        lines.append(f"{_COPIED} = {list(copied)}")
    if len(shards) == 1 and shards[0].rows == (0, spec.rows) and shards[0].columns == (0, spec.dim):
        return [*lines, f"rank = {shards[0].rank}"]
    if not shards:
        return lines
    pieces = (f"{{rank = {s.rank}, rows = {list(s.rows)}, columns = {list(s.columns)}}}" for s in shards)
    return [*lines, "shards = [", *(f"  {piece}," for piece in pieces), "]"]


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


def _copies(value: object, spec: TableSpec, place: str) -> list[Range]:
    if value is True:
        return [(0, spec.rows)]
    if not isinstance(value, list) or not value:
        raise PlanError(f"{place} replicated = {value!r}: expected true, or ranges of rows [[0, {spec.rows}]]")
    return [_range(entry, "replicated", place) for entry in value]


def _ids(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(number) is not int for number in value):
        raise PlanError(f"{place} {_COPIED} = {value!r}: expected the numbers of rows, such as [17, 4711]")
    return tuple(value)


def _rest(spec: TableSpec, copies: Sequence[Range]) -> list[Range]:
    """The rows between those that every rank holds."""
    bounds = [0, *(bound for rows in sorted(copies) for bound in rows), spec.rows]
    return [(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]


def _shards(entries: object, spec: TableSpec, place: str) -> list[Shard]:
    if not isinstance(entries, list) or not entries:
        raise PlanError(f"{place} shards = {entries!r}: expected a list of {{rank = 0, rows = [0, {spec.rows}]}}")
    shards = []
    for number, entry in enumerate(entries):
        inside = f"{place} shards[{number}]"
        _check_keys(entry, _SHARD_KEYS, inside)
        _check_rank(entry.get("rank"), inside)
        whole = {"rows": [0, spec.rows], "columns": [0, spec.dim]}
        rows, columns = (_range(entry.get(key, default), key, inside) for key, default in whole.items())
        shards.append(Shard(spec.name, entry["rank"], rows, columns))
    return shards


def _check_keys(section: object, known: tuple[str, ...], place: str) -> None:
    if not isinstance(section, Mapping):
        raise PlanError(f"{place} is {section!r}: expected the keys {', '.join(known)}")
    for key in section:
        if key not in known:
            raise PlanError(f"{place} has no key {key!r}. {nearest_name(key, known)}")


def _check_rank(value: object, place: str) -> None:
    if type(value) is not int:
        raise PlanError(f"{place} rank = {value!r}: expected the number of a rank")


def _range(value: object, key: str, place: str) -> Range:
    if not isinstance(value, list) or len(value) != 2 or any(type(bound) is not int for bound in value):
        raise PlanError(f"{place} {key} = {value!r}: expected [first, one after the last]")
    return value[0], value[1]
