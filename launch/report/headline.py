"""The first lines about a run: what it was, on what it ran, and what came out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windrow.launch.epoch_record import METRIC_NAMES
from windrow.launch.report.read_run import ReportedRun, section
from windrow.launch.terminal import byte_size, duration

__all__ = ["Headline", "headline"]

UNKNOWN = "not recorded"
MOST_HOSTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """A card on top of the page."""

    name: str
    """Of the run."""
    result: str
    """The one number that the run was about, with its name."""
    result_note: str
    """What to know about that number."""
    facts: tuple[tuple[str, str], ...]
    """(what, value)."""


def headline(run: ReportedRun) -> Headline:
    """Sum a run up."""
    metric = METRIC_NAMES.get(run.records[-1].metric, run.records[-1].metric)
    best = run.best
    value, note = "not evaluated", "no epoch has a validation metric"
    if best is not None and best.validation is not None:
        told = best.validation if best.test is None else best.test
        value = f"{told:.4f}"
        split = "validation" if best.test is None else f"test, validation {best.validation:.4f}"
        note = f"{metric} ({split}) at epoch {best.epoch}, the best of {len(run.records)}"
    return Headline(name=run.name, result=value, result_note=note, facts=tuple(_facts(run).items()))


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
