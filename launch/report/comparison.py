"""Several runs as tables: what was set differently, and what came out."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import METRIC_NAMES
from windrow.launch.report.memory import peak_memory
from windrow.launch.report.panel import Panel, Section, Table
from windrow.launch.report.read_run import (
    ReportedRun,
    cache_hit_rate,
    home_share,
    mean_traffic,
    traffic_stages,
    waiting_share,
)
from windrow.launch.terminal import byte_size, count, duration

__all__ = ["comparison_section", "flat_settings", "settings_table"]

ABSENT = "-"
MOST_LETTERS = 120


def comparison_section(runs: Sequence[ReportedRun]) -> Section:
    """The figures of the runs beside each other, and the settings in which they differ.

    Args:
        runs: at least two.
    """
    return Section(
        name="comparison",
        title="Side by side",
        lead="What came out, and which settings are not the same (recipe.toml). Bold: not what the first run has.",
        panels=[
            Panel(title="Figures", table=_figures_table(runs)),
            *_differences_panels(runs),
        ],
        packed=True,
    )


def settings_table(recipe: Mapping[str, Any]) -> Table:
    """All settings of one run."""
    return Table(header=("setting", "value"), rows=list(flat_settings(recipe).items()))


def flat_settings(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``section.key`` -> value in one line."""
    flat: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, ensure_ascii=False, default=str)
    return flat


def _differences_panels(runs: Sequence[ReportedRun]) -> list[Panel]:
    settings = [flat_settings(run.recipe) for run in runs]
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


def _settings_beside(
    runs: Sequence[ReportedRun], settings: Sequence[Mapping[str, str]], keys: Sequence[str]
) -> Table:
    marked = {
        (row, column + 1)
        for row, key in enumerate(keys)
        for column, flat in enumerate(settings)
        if flat.get(key) != settings[0].get(key)
    }
    return Table(
        header=("setting", *(run.name for run in runs)),
        rows=[[key, *(_shortened(flat.get(key, ABSENT)) for flat in settings)] for key in keys],
        marked=frozenset(marked),
    )


def _figures_table(runs: Sequence[ReportedRun]) -> Table:
    rows = [[name, *(figure(run) for run in runs)] for name, figure in _figures().items()]
    kept = [row for row in rows if any(cell != ABSENT for cell in row[1:])]
    return Table(header=("figure", *(run.name for run in runs)), rows=kept)


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
        "bytes fetched per epoch": lambda run: byte_size(
            statistics.fmean(r.bytes_fetched for r in run.records)
        ),
        "ranks": lambda run: ABSENT if run.num_ranks is None else str(run.num_ranks),
        "bytes between ranks per epoch": _traffic,
        "rows found at home": lambda run: _share(run, home_share),
        "hit rate of the cache": lambda run: _share(run, cache_hit_rate),
        "training time in communication": lambda run: _share(run, waiting_share),
        "peak memory, largest rank": lambda run: _largest(peak_memory(run)),
    }


def _traffic(run: ReportedRun) -> str:
    if not run.rank_epochs:
        return ABSENT
    return byte_size(sum(map(sum, mean_traffic(run.rank_epochs, traffic_stages(run.rank_epochs)))))


def _share(run: ReportedRun, kind: Callable[[Iterable[RankCost]], float | None]) -> str:
    share = kind(rank for ranks in run.rank_epochs.values() for rank in ranks)
    return ABSENT if share is None else f"{share:.1%}"


def _largest(values: Sequence[int]) -> str:
    return byte_size(max(values)) if any(values) else ABSENT


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.5g}"


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
