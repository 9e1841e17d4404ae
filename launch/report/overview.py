"""What the page says of runs in words: a card for each run, and several runs side by side as tables."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.comm.errors import StoreError
from windrow.launch.report.panel import Panel
from windrow.launch.report.read_run import ReportedRun
from windrow.training.epoch_cost import cache_hit_rate, communication_share, home_share
from windrow.training.journal import METRIC_NAMES
from windrow.training.terminal import byte_size, count, duration

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["comparison_panels", "headline", "profile_panel", "settings_table"]

UNKNOWN = "not recorded"
MOST_HOSTS = 4


def headline(run: ReportedRun) -> dict[str, Any]:
    """A card on top of the page: the run's name, the one number that it was about, a note on that, and facts."""
    best = run.best
    value, note = "not evaluated", "no epoch has a validation metric"
    if best is not None and best.validation is not None:
        told = best.validation if best.test is None else best.test
        value = f"{told:.4f}"
        split = "validation" if best.test is None else f"test, validation {best.validation:.4f}"
        note = f"{_metric_name(run)} ({split}) at epoch {best.epoch}, the best of {len(run.records)}"
    return {"name": run.name, "result": value, "result_note": note, "facts": _facts(run)}


def _metric_name(run: ReportedRun) -> str:
    metric = run.records[-1].metric
    return METRIC_NAMES.get(metric, metric)


def _facts(run: ReportedRun) -> dict[str, str]:
    start = run.starts[-1] if run.starts else {}
    machine, packages = _section(start, "hardware"), _section(start, "packages")
    paths = _section(run.recipe, "graph").get("path") or _section(run.recipe, "log").get("paths") or UNKNOWN
    model, tables = _section(run.recipe, "model"), _section(run.recipe, "tables")
    hosts = list(dict.fromkeys(cost.host for cost in run.last_ranks)) or [machine.get("host", UNKNOWN)]
    commit, dash, state = str(start.get("commit", UNKNOWN)).partition("-")
    starts = f", started {len(run.starts)} times" if len(run.starts) > 1 else ""
    return {
        "recipe": str(run.recipe.get("name", UNKNOWN)),
        "data": ", ".join(map(str, paths)) if isinstance(paths, list) else str(paths),
        "model": str(model.get("kind", UNKNOWN))
        + (f", {model.get('num_layers', '?')} layers of {model['hidden']}" if "hidden" in model else "")
        + (f", embeddings of {tables['dim']}" if "dim" in tables else ""),
        "ranks": str(len(run.last_ranks) or UNKNOWN),
        "hosts": ", ".join(hosts[:MOST_HOSTS])
        + (f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""),
        "hardware (of rank 0)": _hardware(machine),
        "commit": commit[:12] + dash + state,
        "versions": ", ".join(f"{name} {packages[name]}" for name in ("windrow", "torch", "python") if name in packages)
        or UNKNOWN,
        "epochs": f"{len(run.records)} in {duration(sum(record.seconds for record in run.records))}{starts}",
        "state": "finished" if run.finished else "not finished: still running, or killed",
        "folder": str(run.path),
    }


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A dictionary inside another one; empty where there is none, or something else."""
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _hardware(machine: Mapping[str, Any]) -> str:
    if "cores" not in machine:
        return UNKNOWN
    parts = [f"{machine['cores']} cores of {machine.get('processor', 'unknown processor')}"]
    if isinstance(machine.get("memory_bytes"), int):
        parts.append(f"{byte_size(machine['memory_bytes'])} memory")
    return ", ".join([*parts, *map(str, machine.get("gpus", []))])


ABSENT = "-"


def settings_table(runs: Sequence[ReportedRun]) -> "pd.DataFrame":
    """All settings as text: ``section.key`` by run."""
    import pandas as pd

    flat = {run.name: pd.json_normalize(dict(run.recipe)).to_dict("records")[0] for run in runs}
    texts = {
        name: {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in settings.items()}
        for name, settings in flat.items()
    }
    return pd.DataFrame(texts).fillna(ABSENT)


def comparison_panels(runs: Sequence[ReportedRun]) -> list[Panel]:
    """The metrics of at least two runs beside each other, and the settings in which they differ."""
    import pandas as pd

    metrics = pd.DataFrame({run.name: {name: told(run) for name, told in _FIGURES.items()} for run in runs})
    settings = settings_table(runs)
    differing = settings[settings.nunique(axis=1) > 1]
    return [
        Panel(title="Metrics", table=metrics[(metrics != ABSENT).any(axis=1)]),
        Panel(
            title="Settings that differ",
            table=None if differing.empty else differing,
            note=f"{len(differing)} of {len(settings)} settings.",
        ),
    ]


def profile_panel(run: ReportedRun) -> Panel:
    """Where the time of a step goes: the table and the advice of ``windrow profile``.

    Raises:
        StoreError: its file is not what this version writes.
    """
    import pandas as pd

    found = run.profile
    if found is None:
        return Panel(missing="No profile.json: windrow profile RECIPE --json RUN/profile.json writes it.")
    try:
        table = pd.DataFrame(found["stages"], dtype=object).set_index("stage").rename_axis(None).fillna(ABSENT)
        return Panel(table=table, note=". ".join([found["about"], *found["advice"]]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run.path / 'profile.json'}: not what this version of windrow writes. Remove the file to go without it."
        ) from error


_FIGURES: dict[str, Callable[[ReportedRun], str]] = {
    "metric": _metric_name,
    "best epoch": lambda run: str(run.best.epoch) if run.best else ABSENT,
    "validation at best epoch": lambda run: _told(run.best.validation if run.best else None, ".5g"),
    "test at best epoch": lambda run: _told(run.best.test if run.best else None, ".5g"),
    "training loss, last epoch": lambda run: _told(run.records[-1].loss, ".5g"),
    "epochs": lambda run: str(len(run.records)),
    "time of all epochs": lambda run: duration(sum(record.seconds for record in run.records)),
    "time per epoch (median)": lambda run: duration(statistics.median(record.seconds for record in run.records)),
    "rows fetched per epoch": lambda run: count(statistics.fmean(record.rows_fetched for record in run.records)),
    "bytes fetched per epoch": lambda run: byte_size(statistics.fmean(r.bytes_fetched for r in run.records)),
    "ranks": lambda run: str(len(run.last_ranks) or ABSENT),
    "bytes between ranks per epoch": lambda run: (
        byte_size(sum(matrix.sum() for matrix in run.traffic().values())) if run.rank_epochs else ABSENT
    ),
    "local rows": lambda run: _told(home_share(run.costs), ".1%"),
    "hit rate of the cache": lambda run: _told(cache_hit_rate(run.costs), ".1%"),
    "training time in communication": lambda run: _told(communication_share(run.costs), ".1%"),
    "peak memory, largest rank": lambda run: (
        byte_size(max(cost.peak_memory_bytes for cost in run.costs)) if run.costs else ABSENT
    ),
}
"""Name of a figure -> how it is read from a run."""


def _told(value: float | None, how: str) -> str:
    return ABSENT if value is None else format(value, how)
