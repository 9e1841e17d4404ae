"""What ranks did, from ranks.jsonl: seconds per stage, waiting, bytes between ranks, rows found at home, memory.

Each is a section of the page with a panel per run.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.launch.epoch_cost import RankCost, cache_hit_rate, home_share
from windrow.launch.report.panel import (
    INK,
    MUTED,
    Panel,
    Section,
    View,
    axis,
    bars,
    byte_unit,
    curve,
    exact_bytes,
    layout,
    per_run,
    plain,
    rank_axis,
    series_colour,
    whole_ticks,
)
from windrow.launch.report.read_run import (
    ReportedRun,
    mean_traffic,
    traffic_stages,
    waiting_share,
    waiting_stages,
)
from windrow.launch.terminal import byte_size

__all__ = [
    "communication_section",
    "heat_map",
    "locality_section",
    "memory_section",
    "stages_section",
    "traffic_section",
]

NO_RANKS = "this run has no ranks.jsonl, which older versions did not write"
NOT_RECORDED = f"Not recorded: {NO_RANKS}."

ENOUGH_EPOCHS = 3
"""From so many epochs on there is a view without the first, which compiles and so dwarfs the others."""

MOST_RANKS_TO_CHOOSE = 64
"""Of more ranks each one's bars would make the page too large."""

Epochs = Sequence[tuple[int, Mapping[str, float]]]


def stages_section(runs: Sequence[ReportedRun]) -> Section:
    """Seconds of each stage by epoch, of the slowest rank or of one."""
    return per_run(
        runs,
        _stages_panel,
        name="stages",
        title="Seconds per stage",
        lead="How long an epoch spent in each stage. Stages that overlap add up to more than the epoch, whose own "
        "duration is the line. Of each stage the slowest rank is shown until you choose a rank.",
    )


def _stages_panel(run: ReportedRun, title: str) -> Panel:
    slowest = [(record.epoch, record.stage_seconds) for record in run.records]
    whole = {record.epoch: record.seconds for record in run.records}
    stages = list(dict.fromkeys(stage for _, seconds in slowest for stage in seconds))
    if not stages:
        return Panel(title=title, missing="metrics.jsonl has no seconds of stages.")
    views = [_stages_view("slowest rank of each stage", slowest, stages, whole)]
    if len(slowest) >= ENOUGH_EPOCHS:
        views.append(_stages_view("slowest rank, without the first epoch", slowest[1:], stages, whole))
    for rank in range(min(run.num_ranks or 0, MOST_RANKS_TO_CHOOSE)):
        own = [
            (epoch, ranks[rank].stage_seconds)
            for epoch, ranks in run.rank_epochs.items()
            if rank < len(ranks)
        ]
        if own:
            seconds = {epoch: run.rank_epochs[epoch][rank].seconds for epoch, _ in own}
            host = run.rank_epochs[own[-1][0]][rank].host
            views.append(
                _stages_view(f"rank {rank} ({host})" if host else f"rank {rank}", own, stages, seconds)
            )
    return Panel(
        title=title,
        description=f"Stacked bars of the seconds that each epoch of {run.name} spent in {', '.join(stages)}.",
        views=views,
        note=_stages_note(run),
    )


def _stages_note(run: ReportedRun) -> str:
    if not run.rank_epochs:
        return f"Ranks cannot be chosen: {NO_RANKS}."
    ranks = run.num_ranks or 0
    if ranks > MOST_RANKS_TO_CHOOSE:
        return f"Of {ranks} ranks the first {MOST_RANKS_TO_CHOOSE} can be chosen; ranks.jsonl has them all."
    return ""


def _stages_view(label: str, epochs: Epochs, stages: Sequence[str], whole: Mapping[int, float]) -> View:
    x = [epoch for epoch, _ in epochs]
    series = {stage: [seconds.get(stage, 0.0) for _, seconds in epochs] for stage in stages}
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "whole epoch",
        "x": x,
        "y": [whole[epoch] for epoch in x],
        "line": {"color": INK, "width": 1.5},
        "marker": {"size": 5},
        "hovertemplate": "whole epoch: %{y:.4~g} s<extra>epoch %{x}</extra>",
    }
    return View(
        label=label,
        data=[*bars(x, series, "%{fullData.name}: %{y:.4~g} s<extra>epoch %{x}</extra>"), line],
        layout=layout(
            x=axis("epoch", showgrid=False, **whole_ticks(x)),
            y=axis("seconds", rangemode="tozero"),
            barmode="stack",
            bargap=0.15,
        ),
    )


def communication_section(runs: Sequence[ReportedRun]) -> Section:
    """The share of training that ranks wait in communication, by rank and by epoch."""
    return per_run(
        runs,
        _waiting_panel,
        name="communication",
        title="Time in communication",
        lead="The share of its time in training, evaluation left out, that each rank spent waiting inside exchanges "
        "and sums (ranks.jsonl): for the network, or for a rank that came later. What travels while a rank computes "
        "costs it nothing, and is not in it.",
    )


def _waiting_panel(run: ReportedRun, title: str) -> Panel:
    epochs = list(run.rank_epochs.values())
    share = waiting_share(run.costs)
    if share is None:
        file = "ranks.jsonl has no waiting times" if epochs else "this run has no ranks.jsonl"
        return Panel(title=title, missing=f"Not recorded: {file}, which older versions did not write.")
    stages = waiting_stages(run.rank_epochs)
    names = [str(rank) for rank in range(len(run.by_rank))]
    numbers = list(run.rank_epochs)
    return Panel(
        title=title,
        description=f"Bars of the share of training that each rank of {run.name} waited in communication; {share:.1%} "
        "on average.",
        views=[
            _waiting_view(
                "by rank, all epochs", names, run.by_rank, stages, "rank", type="category", showgrid=False
            ),
            _waiting_view(
                "by epoch, all ranks",
                numbers,
                epochs,
                stages,
                "epoch",
                showgrid=False,
                **whole_ticks(numbers),
            ),
        ],
        note=f"{share:.1%} over all ranks and epochs.",
    )


def _waiting_view(
    label: str,
    places: Sequence[object],
    costs: Sequence[Sequence[RankCost]],
    stages: Sequence[str],
    what: str,
    **options: Any,
) -> View:
    """Stacked bars, one for each place: the stages' shares of the training time of what is listed there."""
    totals = [sum(cost.training_seconds for cost in listed) for listed in costs]
    waited = {
        stage: [sum(cost.waiting_seconds.get(stage, 0.0) for cost in listed) for listed in costs]
        for stage in stages
    }
    return View(
        label=label,
        data=bars(
            places,
            {stage: _percent(seconds, totals) for stage, seconds in waited.items()},
            f"%{{fullData.name}}: %{{y:.2f}} %, %{{customdata}}<extra>{what} %{{x}}</extra>",
            told={stage: [f"{each:,.4g} s" for each in seconds] for stage, seconds in waited.items()},
        ),
        layout=layout(
            x=axis(what, **options),
            y=axis("share of training time (%)", rangemode="tozero"),
            barmode="stack",
            bargap=0.35,
            showlegend=True,
        ),
    )


def _percent(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [100 * part / whole if whole > 0 else 0.0 for part, whole in zip(parts, wholes, strict=True)]


def locality_section(runs: Sequence[ReportedRun]) -> Section:
    """The share of rows found at home, by rank and by epoch."""
    return per_run(
        runs,
        _locality_panel,
        name="locality",
        title="Rows found at home",
        lead="Of the rows of features or embeddings that a rank needed, the share that it had itself: its own ones, "
        "and copies in its cache where it has one (ranks.jsonl). The rest travelled.",
    )


def _locality_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(title=title, missing=NOT_RECORDED)
    share = home_share(run.costs)
    if share is None:
        return Panel(title=title, missing="No rows were asked for.")
    hits = cache_hit_rate(run.costs)
    note = f"{share:.2%} over all ranks and epochs."
    if hits is not None:
        note += f" Of the rows of other ranks, {hits:.2%} were in the cache."
    return Panel(
        title=title,
        description=f"Share of rows found at home in {run.name}: {share:.1%} over all ranks and epochs.",
        views=[_locality_by_rank(run), _locality_by_epoch(run)],
        note=note,
    )


def _locality_by_rank(run: ReportedRun) -> View:
    kinds = {
        "its own": ([sum(cost.rows_local for cost in costs) for costs in run.by_rank], 2),
        "in the cache": ([sum(cost.rows_cached for cost in costs) for costs in run.by_rank], 0),
        "from another rank": ([sum(cost.rows_remote for cost in costs) for costs in run.by_rank], 5),
    }
    totals = [sum(rows) for rows in zip(*(rows for rows, _ in kinds.values()), strict=True)]
    shown = {name: kind for name, kind in kinds.items() if any(kind[0]) or name != "in the cache"}
    colours = [series_colour(colour) for _, colour in shown.values()]
    return View(
        label="by rank, all epochs",
        data=bars(
            [str(rank) for rank in range(len(totals))],
            {name: _percent(rows, totals) for name, (rows, _) in shown.items()},
            "rank %{x}, %{fullData.name}: %{y:.2f} %, %{customdata}<extra></extra>",
            told={name: [f"{each:,} rows" for each in rows] for name, (rows, _) in shown.items()},
            marker=lambda number: {"color": colours[number]},
        ),
        layout=layout(
            x=rank_axis(), y=axis("share of rows (%)", range=[0, 100]), barmode="stack", bargap=0.35
        ),
    )


def _locality_by_epoch(run: ReportedRun) -> View:
    home = {
        epoch: share for epoch, ranks in run.rank_epochs.items() if (share := home_share(ranks)) is not None
    }
    hits = {
        epoch: rate for epoch, ranks in run.rank_epochs.items() if (rate := cache_hit_rate(ranks)) is not None
    }
    each = [
        [share for rank in run.rank_epochs[epoch] if (share := home_share([rank])) is not None]
        for epoch in home
    ]
    curves = (
        ("best rank", list(home), [max(shares) for shares in each], 4, "dot"),
        ("all ranks", list(home), list(home.values()), 2, "solid"),
        ("worst rank", list(home), [min(shares) for shares in each], 5, "dot"),
        ("hit rate of the cache", list(hits), list(hits.values()), 0, "dash"),
    )
    data = [
        curve(
            name,
            epochs,
            [100 * share for share in shares],
            colour=series_colour(colour),
            dash=dash,
            hover="epoch %{x}: %{y:.2f} %",
        )
        for name, epochs, shares, colour, dash in curves
        if epochs
    ]
    x = axis("epoch", **whole_ticks(list(home)))
    return View(
        label="by epoch", data=data, layout=layout(x=x, y=axis("share of rows (%)", range=[0, 100.5]))
    )


MOST_CELLS_WITH_TEXT = 64
"""More cells are too small for their numbers, which the pointer still shows."""
MOST_CELLS_WITH_EXACT_NUMBERS = 64 * 64
"""More exact numbers would make the page tens of megabytes: beyond, four digits are shown."""
MOST_CELLS_WITH_GAPS = 32 * 32
"""More are so small that gaps between them would make all of them look pale, as if little were sent."""
GAP_PIXELS = 2
CELL_PIXELS = 46
LEAST_HEIGHT, MOST_HEIGHT = 340, 620


def traffic_section(runs: Sequence[ReportedRun]) -> Section:
    """Bytes from rank to rank, of all stages and of each."""
    return per_run(
        runs,
        _traffic_panel,
        name="traffic",
        title="Bytes between ranks",
        lead="What each rank (row) sent to each other rank (column) in training steps, per epoch on average over all "
        "epochs (ranks.jsonl). Choose a stage to see it alone.",
    )


def heat_map(values: Sequence[Sequence[float]], *, unit: str = "bytes", label: str = "all") -> View:
    """A matrix [from, to]; bytes are scaled to a readable unit."""
    largest = max((value for row in values for value in row), default=0.0)
    divisor, shown_unit = byte_unit(largest) if unit == "bytes" else (1.0, unit)
    senders = [str(rank) for rank in range(len(values))]
    receivers = [str(rank) for rank in range(len(values[0]))] if values else []
    cells = len(senders) * len(receivers)
    gap = GAP_PIXELS if cells <= MOST_CELLS_WITH_GAPS else 0
    exact = exact_bytes if unit == "bytes" else lambda value: f"{value:,.6g} {plain(unit)}"
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": receivers,
        "y": senders,
        "z": [[value / divisor for value in row] for row in values],
        "zmin": 0,
        "zmax": largest / divisor or 1,
        "customdata": [[exact(value) for value in row] for row in values],
        "hovertemplate": "from %{y} to %{x}: %{customdata}<extra></extra>",
        "colorscale": [[0, "var(--heat-low)"], [0.5, "var(--heat-middle)"], [1, "var(--heat-high)"]],
        "colorbar": {
            "title": {"text": plain(shown_unit), "side": "right"},
            "outlinewidth": 0,
            "thickness": 12,
            "tickfont": {"color": MUTED},
        },
        "xgap": gap,
        "ygap": gap,
    }
    if cells > MOST_CELLS_WITH_EXACT_NUMBERS:
        del trace["customdata"]
        trace["hovertemplate"] = f"from %{{y}} to %{{x}}: %{{z:.4~g}} {plain(shown_unit)}<extra></extra>"
    if cells <= MOST_CELLS_WITH_TEXT:
        short = byte_size if unit == "bytes" else lambda value: f"{value:.3g}"
        trace |= {"text": [[short(value) for value in row] for row in values], "texttemplate": "%{text}"}
    return View(
        label=label,
        data=[trace],
        layout=layout(
            x=axis("to rank", type="category", showgrid=False),
            y=axis("from rank", type="category", showgrid=False, autorange="reversed"),
            height=min(MOST_HEIGHT, max(LEAST_HEIGHT, 110 + CELL_PIXELS * len(senders))),
        ),
    )


def _traffic_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        fetched = statistics.fmean(record.bytes_fetched for record in run.records)
        return Panel(
            title=title,
            missing=f"{NOT_RECORDED} metrics.jsonl has the sum alone: {byte_size(fetched)} fetched per epoch.",
        )
    stages = traffic_stages(run.rank_epochs)
    if not stages:
        reason = "one rank trained alone" if run.num_ranks == 1 else "all that was needed was at home"
        return Panel(title=title, missing=f"No bytes went from rank to rank: {reason}.")
    views = [heat_map(mean_traffic(run.rank_epochs, stages), label="all stages")]
    views += [heat_map(mean_traffic(run.rank_epochs, [stage]), label=stage) for stage in stages]
    everything = sum(map(sum, mean_traffic(run.rank_epochs, stages)))
    size = run.num_ranks
    reduced = statistics.fmean(
        rank.bytes_reduced for ranks in run.rank_epochs.values() if len(ranks) == size for rank in ranks
    )
    return Panel(
        title=title,
        description=f"Heat map of the bytes that each of {size} ranks of {run.name} sends to each other one.",
        views=views,
        note=f"{byte_size(everything)} per epoch in all. Besides, each rank puts {byte_size(reduced)} of gradients per "
        "epoch into sums over all ranks; the way they take is the communication library's, so they are not in the map.",
    )


def memory_section(runs: Sequence[ReportedRun]) -> Section:
    """Peak memory of each rank."""
    return per_run(
        runs,
        _memory_panel,
        name="memory",
        title="Memory per rank",
        lead="The most memory that each rank's process has had, code of libraries included (ranks.jsonl), and the most "
        "that tensors took on its GPU where it has one.",
    )


def _memory_panel(run: ReportedRun, title: str) -> Panel:
    peaks = [max(cost.peak_memory_bytes for cost in costs) for costs in run.by_rank]
    if not any(peaks):
        untold = "Not recorded: this system does not tell a process's peak."
        return Panel(title=title, missing=untold if peaks else NOT_RECORDED)
    kinds = {
        "process": peaks,
        "GPU": [max(cost.peak_gpu_memory_bytes for cost in costs) for costs in run.by_rank],
    }
    kinds = {name: values for name, values in kinds.items() if any(values)}
    divisor, unit = byte_unit(max(max(values) for values in kinds.values()))
    hosts = [plain(costs[-1].host) for costs in run.by_rank]
    view = View(
        label="peak",
        data=bars(
            [str(rank) for rank in range(len(peaks))],
            {name: [value / divisor for value in values] for name, values in kinds.items()},
            "rank %{x} on %{customdata}<extra></extra>",
            told={
                name: [f"{host}: {exact_bytes(value)}" for host, value in zip(hosts, values, strict=True)]
                for name, values in kinds.items()
            },
            marker=lambda number: {"color": series_colour(number)},
        ),
        layout=layout(
            x=rank_axis(),
            y=axis(f"peak memory ({unit})", rangemode="tozero"),
            bargap=0.35,
            showlegend=len(kinds) > 1,
        ),
    )
    return Panel(
        title=title,
        description=f"Bars of the peak memory of each rank of {run.name}; the largest is {exact_bytes(max(peaks))}.",
        views=[view],
        note=f"{exact_bytes(sum(peaks))} over all ranks; pages that processes share count once for each.",
    )
