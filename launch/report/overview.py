"""What the page says of runs in words: a card for each run, and several runs side by side as tables."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windrow.launch.report.panel import Panel, Section, Table, shortened
from windrow.launch.report.read_run import ReportedRun, mean_traffic, section, traffic_stages, waiting_share
from windrow.training.epoch_cost import RankCost, cache_hit_rate, home_share
from windrow.training.journal import METRIC_NAMES
from windrow.training.terminal import byte_size, count, duration

__all__ = ["comparison_section", "headline", "settings_table"]

UNKNOWN = "not recorded"
MOST_HOSTS = 4


def headline(run: ReportedRun) -> dict[str, Any]:
    """A card on top of the page: the run's name, the one number that it was about, a note on that, and facts."""
    metric = METRIC_NAMES.get(run.records[-1].metric, run.records[-1].metric)
    best = run.best
    value, note = "not evaluated", "no epoch has a validation metric"
    if best is not None and best.validation is not None:
        told = best.validation if best.test is None else best.test
        value = f"{told:.4f}"
        split = "validation" if best.test is None else f"test, validation {best.validation:.4f}"
        note = f"{metric} ({split}) at epoch {best.epoch}, the best of {len(run.records)}"
    return {"name": run.name, "result": value, "result_note": note, "facts": _facts(run)}


def _facts(run: ReportedRun) -> dict[str, str]:
    environment = run.starts[-1] if run.starts else {}
    seconds = sum(record.seconds for record in run.records)
    starts = f", started {len(run.starts)} times" if len(run.starts) > 1 else ""
    return {
        "recipe": str(run.recipe.get("name", UNKNOWN)),
        "data": _data(run.recipe),
        "model": _model(run.recipe),
        "ranks": UNKNOWN if run.num_ranks is None else str(run.num_ranks),
        "hosts": _hosts(run),
        "hardware": _hardware(section(environment, "hardware")),
        "commit": _commit(str(environment.get("commit", UNKNOWN))),
        "versions": _versions(section(environment, "packages")),
        "epochs": f"{len(run.records)} in {duration(seconds)}{starts}",
        "state": "finished" if run.finished else "not finished: still running, or killed",
        "folder": str(run.path),
    }


def _data(recipe: Mapping[str, Any]) -> str:
    paths = section(recipe, "graph").get("path") or section(recipe, "log").get("paths") or UNKNOWN
    return ", ".join(map(str, paths)) if isinstance(paths, list) else str(paths)


def _model(recipe: Mapping[str, Any]) -> str:
    model = section(recipe, "model")
    words = [str(model.get("kind", UNKNOWN))]
    if "hidden" in model:
        words.append(f"{model.get('num_layers', '?')} layers of {model['hidden']}")
    if "dim" in section(recipe, "tables"):
        words.append(f"embeddings of {section(recipe, 'tables')['dim']}")
    return ", ".join(words)


def _hosts(run: ReportedRun) -> str:
    hosts = run.hosts or ([str(section(run.starts[-1], "hardware").get("host", ""))] if run.starts else [])
    hosts = [host for host in hosts if host]
    if not hosts:
        return UNKNOWN
    shown = ", ".join(hosts[:MOST_HOSTS])
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    first = "" if run.rank_epochs else " (of rank 0)"
    return shown + more + first


def _hardware(machine: Mapping[str, Any]) -> str:
    parts = []
    if "cores" in machine:
        parts.append(f"{machine['cores']} cores of {machine.get('processor', 'unknown processor')}")
    if isinstance(machine.get("memory_bytes"), int):
        parts.append(f"{byte_size(machine['memory_bytes'])} memory")
    parts += [str(gpu) for gpu in machine.get("gpus", [])]
    return f"{', '.join(parts)} (of rank 0)" if parts else UNKNOWN


def _commit(commit: str) -> str:
    name, dash, state = commit.partition("-")
    return name[:12] + dash + state


def _versions(packages: Mapping[str, Any]) -> str:
    named = [f"{name} {packages[name]}" for name in ("windrow", "torch", "python") if name in packages]
    return ", ".join(named) or UNKNOWN


ABSENT = "-"
MOST_LETTERS = 120


def comparison_section(runs: Sequence[ReportedRun]) -> Section:
    """The metrics of at least two runs beside each other, and the settings in which they differ."""
    return Section(
        name="comparison",
        title="Side by side",
        lead="What came out, and which settings are not the same (recipe.toml). Bold: not what the first run has.",
        panels=[Panel(title="Metrics", table=_figures_table(runs)), *_differences_panels(runs)],
        packed=True,
    )


def settings_table(recipe: Mapping[str, Any]) -> Table:
    """All settings of one run."""
    return Table(header=("setting", "value"), rows=list(_flat_settings(recipe).items()))


def _flat_settings(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``section.key`` -> value in one line."""
    flat: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= _flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, ensure_ascii=False, default=str)
    return flat


def _differences_panels(runs: Sequence[ReportedRun]) -> list[Panel]:
    settings = [_flat_settings(run.recipe) for run in runs]
    keys = dict.fromkeys(key for flat in settings for key in flat)
    shared = [key for key in keys if all(key in flat for flat in settings)]
    differing = [key for key in shared if len({flat[key] for flat in settings}) > 1]
    partial = [key for key in keys if key not in shared]
    panels = [
        Panel(
            title="Settings that differ",
            table=_settings_beside(runs, settings, differing) if differing else None,
            missing="" if differing else "No setting that all of these runs have differs.",
            note=f"{len(differing)} of the {len(shared)} settings that every one of these recipes has.",
        )
    ]
    if partial:
        panels.append(
            Panel(
                title="Settings that not every recipe has",
                table=_settings_beside(runs, settings, partial),
                folded=f"{len(partial)} settings",
                note="Recipes of graphs and of click logs have different sections, and new versions new settings.",
            )
        )
    return panels


def _settings_beside(runs: Sequence[ReportedRun], settings: Sequence[Mapping[str, str]], keys: Sequence[str]) -> Table:
    marked = {
        (row, column + 1)
        for row, key in enumerate(keys)
        for column, flat in enumerate(settings)
        if flat.get(key) != settings[0].get(key)
    }
    return Table(
        header=("setting", *(run.name for run in runs)),
        rows=[[key, *(shortened(flat.get(key, ABSENT), MOST_LETTERS) for flat in settings)] for key in keys],
        marked=frozenset(marked),
    )


def _figures_table(runs: Sequence[ReportedRun]) -> Table:
    rows = [[name, *(figure(run) for run in runs)] for name, figure in _figures().items()]
    kept = [row for row in rows if any(cell != ABSENT for cell in row[1:])]
    return Table(header=("metric", *(run.name for run in runs)), rows=kept)


def _figures() -> dict[str, Callable[[ReportedRun], str]]:
    """Name of a figure -> how it is read from a run."""
    return {
        "metric": lambda run: METRIC_NAMES.get(run.records[-1].metric, run.records[-1].metric),
        "best epoch": lambda run: str(run.best.epoch) if run.best else ABSENT,
        "validation at best epoch": lambda run: _number(run.best.validation if run.best else None),
        "test at best epoch": lambda run: _number(run.best.test if run.best else None),
        "training loss, last epoch": lambda run: _number(run.records[-1].loss),
        "epochs": lambda run: str(len(run.records)),
        "time of all epochs": lambda run: duration(sum(record.seconds for record in run.records)),
        "time per epoch (median)": lambda run: duration(statistics.median(r.seconds for r in run.records)),
        "rows fetched per epoch": lambda run: count(statistics.fmean(r.rows_fetched for r in run.records)),
        "bytes fetched per epoch": lambda run: byte_size(statistics.fmean(r.bytes_fetched for r in run.records)),
        "ranks": lambda run: ABSENT if run.num_ranks is None else str(run.num_ranks),
        "bytes between ranks per epoch": _traffic,
        "local rows": lambda run: _share(run, home_share),
        "hit rate of the cache": lambda run: _share(run, cache_hit_rate),
        "training time in communication": lambda run: _share(run, waiting_share),
        "peak memory, largest rank": lambda run: _largest([cost.peak_memory_bytes for cost in run.costs]),
    }


def _traffic(run: ReportedRun) -> str:
    if not run.rank_epochs:
        return ABSENT
    return byte_size(sum(map(sum, mean_traffic(run.rank_epochs, traffic_stages(run.rank_epochs)))))


def _share(run: ReportedRun, kind: Callable[[Sequence[RankCost]], float | None]) -> str:
    share = kind(run.costs)
    return ABSENT if share is None else f"{share:.1%}"


def _largest(values: Sequence[int]) -> str:
    return byte_size(max(values)) if any(values) else ABSENT


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.5g}"
