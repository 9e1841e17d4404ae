"""Peak memory of each rank."""

from collections.abc import Sequence

from windrow.launch.report.panel import (
    Panel,
    Section,
    View,
    axis,
    byte_unit,
    exact_bytes,
    layout,
    plain,
    run_title,
    series_colour,
)
from windrow.launch.report.read_run import ReportedRun

__all__ = ["memory_section", "peak_memory"]


def memory_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.
    """
    return Section(
        name="memory",
        title="Memory per rank",
        lead="The most memory that each rank's process has had, code of libraries included (ranks.jsonl), and the most "
        "that tensors took on its GPU where it has one.",
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def peak_memory(run: ReportedRun) -> list[int]:
    """Peak bytes of each rank over all epochs; empty where it was not recorded."""
    epochs = list(run.rank_epochs.values())
    if not epochs:
        return []
    return [
        max(ranks[rank].peak_memory_bytes for ranks in epochs if rank < len(ranks))
        for rank in range(len(epochs[-1]))
    ]


def _panel(run: ReportedRun, title: str) -> Panel:
    peaks = peak_memory(run)
    if not any(peaks):
        return Panel(
            title=title,
            missing="Not recorded: this run has no ranks.jsonl, which older versions did not write."
            if not peaks
            else "Not recorded: this system does not tell a process's peak.",
        )
    epochs = list(run.rank_epochs.values())
    gpu = [
        max(ranks[rank].peak_gpu_memory_bytes for ranks in epochs if rank < len(ranks))
        for rank in range(len(peaks))
    ]
    kinds = [("process", peaks, series_colour(0))]
    if any(gpu):
        kinds.append(("GPU", gpu, series_colour(1)))
    divisor, unit = byte_unit(max([*peaks, *gpu]))
    hosts = [cost.host for cost in epochs[-1]]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": [str(rank) for rank in range(len(values))],
            "y": [value / divisor for value in values],
            "customdata": [
                f"{plain(host)}: {exact_bytes(value)}" for host, value in zip(hosts, values, strict=True)
            ],
            "hovertemplate": "rank %{x} on %{customdata}<extra></extra>",
            "marker": {"color": colour},
        }
        for name, values, colour in kinds
    ]
    return Panel(
        title=title,
        description=f"Bars of the peak memory of each rank of {run.name}; the largest is {exact_bytes(max(peaks))}.",
        views=[
            View(
                label="peak",
                data=data,
                layout=layout(
                    x=axis("rank", type="category", showgrid=False),
                    y=axis(f"peak memory ({unit})", rangemode="tozero"),
                    bargap=0.35,
                    showlegend=len(kinds) > 1,
                ),
            )
        ],
        note=f"{exact_bytes(sum(peaks))} over all ranks; pages that processes share count once for each.",
    )
