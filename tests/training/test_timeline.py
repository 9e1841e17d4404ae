"""windrow.training.timeline: real runs, recorded, and what their timelines show; one file from all ranks."""

import contextlib
import errno
import itertools
import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import hypothesis.strategies as st
import pytest
from hypothesis import given

from windrow.comm.clock import ClockAlignment, ClockOffset
from windrow.comm.launcher import launched_rank, launched_size
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Span
from windrow.gnn.partitioning import partition_to_store
from windrow.launch.recipe import AnyRecipe, Recipe, make_recipe
from windrow.launch.training import train
from windrow.training import timeline
from windrow.training.checkpoint import load_checkpoint
from windrow.training.journal import read_rank_records, read_records
from windrow.training.timeline import (
    GRAPH_ROWS,
    LOG_ROWS,
    OTHER_TRAFFIC,
    RankTrace,
    events_of,
    row_of,
    sorted_rows,
    write_together,
)
from windrow.training.trainer import Trainer

STEPS = 4


class Killed(BaseException):
    """What stands in for a kill."""


class Bar(NamedTuple):
    """An event as it is drawn; in microseconds."""

    row: str
    name: str
    begin: float
    end: float

    def overlaps(self, other: "Bar") -> bool:
        """Whether both have more than a moment in common."""
        return max(self.begin, other.begin) < min(self.end, other.end)


def graph_recipe(folder: Path, parts: int, *, epochs: int = 3, backend: str = "auto") -> Recipe:
    """Training on the graph of these tests, with a cache that holds some of what is needed; the rest travels."""
    values: dict[str, Any] = {
        "name": "tiny",
        "store": "store",
        "graph": {"path": "graph.npz"},
        "partition": {"num_parts": parts, "method": "random"},
        "model": {"hidden": 8, "num_layers": 2, "dropout": 0.3},
        "sampler": {"fanouts": [4, 3]},
        "cache": {"alpha": 0.2, "shared_memory": False},
        "training": {"epochs": epochs, "batch_size": 32, "learning_rate": 0.01},
        "run": {"tensorboard": False, "threads": 1, "deadline_s": 60, "backend": backend},
    }
    return make_recipe(values, source="tiny.toml", base=folder)


def prepare_graph(graph_file: Path, folder: Path, parts: int) -> None:
    """Copy the graph, and write its store."""
    shutil.copy(graph_file, folder)
    partition_to_store(graph_recipe(folder, parts), overwrite=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, graph_file: Path) -> Path:
    """A folder with graph and store for one rank, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_graph(graph_file, folder, 1)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(prepared, tmp_path / "work"))


def read_bars(path: Path) -> dict[str, list[Bar]]:
    """Process name -> its bars in order of time, tracks of a row together; a thread's are checked to be disjoint."""
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars: defaultdict[str, list[Bar]] = defaultdict(list)
    open_until: defaultdict[tuple[int, int], float] = defaultdict(float)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: float(e["ts"])):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= open_until[thread]
        open_until[thread] = event["ts"] + event["dur"]
        row = threads[thread].rstrip("0123456789").rstrip()
        bars[processes[event["pid"]]].append(Bar(row, event["name"], event["ts"], event["ts"] + event["dur"]))
    return {name: bars[name] for name in sorted(bars)}


def in_row(bars: list[Bar], row: str) -> list[Bar]:
    return [bar for bar in bars if bar.row == row]


def overlapping(some: list[Bar], others: list[Bar]) -> Iterator[Bar]:
    """Those of some that overlap one of others."""
    return (bar for bar in some if any(bar.overlaps(other) for other in others))


def check_epochs(bars: list[Bar], numbers: list[int]) -> None:
    """Epochs follow one another, and everything happens inside them."""
    epochs = in_row(bars, "epoch")
    assert [bar.name for bar in epochs] == [f"epoch {number}" for number in numbers]
    assert all(one.end == other.begin for one, other in itertools.pairwise(epochs))
    for bar in bars:
        assert epochs[0].begin <= bar.begin <= bar.end <= epochs[-1].end
    for bar in in_row(bars, "update"):
        assert sum(epoch.begin <= bar.begin and bar.end <= epoch.end for epoch in epochs) == 1


def assert_same_training(one: Path, other: Path) -> None:
    """Weights, tables and losses are equal to the last bit."""
    ends = [load_checkpoint(run / "checkpoints") for run in (one, other)]
    assert ends[0].header.table_files == ends[1].header.table_files
    first, second = (end.state["trainer"] for end in ends)
    assert str(first) == str(second)
    assert all(value.equal(second["model"][name]) for name, value in first["model"].items())
    losses = [[record.loss for record in read_records(run / "metrics.jsonl")] for run in (one, other)]
    assert losses[0] == losses[1]


def trained_twice(recipe: AnyRecipe, folder: Path) -> dict[str, list[Bar]]:
    """Train with a timeline and without; nothing else differs. Returns the timeline, the same on all ranks."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    train(recipe, run_folder=folder / "traced", trace=True)
    result = train(recipe, run_folder=folder / "plain")
    assert len(set(MPI.COMM_WORLD.allgather(result))) == 1
    if launched_rank() == 0:
        assert_same_training(folder / "traced", folder / "plain")
        assert not (folder / "plain" / "trace.json").exists()
    MPI.COMM_WORLD.Barrier()
    about = json.loads((folder / "traced" / "trace.json").read_text())["otherData"]
    for rank in about["ranks"]:
        # Ranks of one machine have one clock, so the offset is nothing but error.
        assert abs(rank["clock_offset_us"]) <= rank["clock_uncertainty_us"]
        assert rank["spans_missing"] == 0
    return read_bars(folder / "traced" / "trace.json")


def assert_ranks_agree(run: Path) -> None:
    """What ranks say of one another, and what the record of the epoch says of all, is the same."""
    records, ranks = read_records(run / "metrics.jsonl"), read_rank_records(run / "ranks.jsonl")
    assert [record.epoch for record in ranks] == [record.epoch for record in records]
    for record, (first, second) in zip(records, (each.ranks for each in ranks), strict=True):
        for here, there in ((first, second), (second, first)):
            peer = int(here is first)
            sent = {stage: numbers[peer] for stage, numbers in here.bytes_sent.items()}
            assert sent == {stage: numbers[1 - peer] for stage, numbers in there.bytes_received.items()}
            assert all(numbers[1 - peer] == 0 for numbers in here.bytes_sent.values())
        local, cached, remote = (
            getattr(first, name) + getattr(second, name) for name in ("rows_local", "rows_cached", "rows_remote")
        )
        assert record.figures["share of local rows"] == (local + cached) / (local + cached + remote)
        hits = cached / (cached + remote) if cached else None
        assert record.figures.get("hit rate of the cache") == hits
        assert record.rows_fetched == remote
        moved = [sum(rank.bytes_received["features: rows"]) for rank in (first, second)]
        assert record.bytes_fetched == sum(moved)
        assert first.bytes_reduced == second.bytes_reduced > 0
        assert record.seconds == max(first.seconds, second.seconds)
        assert min(first.peak_memory_bytes, second.peak_memory_bytes) > 1 << 20


@pytest.mark.parallel(2)
def test_a_graph_job_of_two_ranks(shared_tmp_path: Path, graph_file: Path) -> None:
    if launched_rank() == 0:
        prepare_graph(graph_file, shared_tmp_path, parts=2)
        (shared_tmp_path / "one").mkdir()
        prepare_graph(graph_file, shared_tmp_path / "one", parts=1)
    timelines = trained_twice(graph_recipe(shared_tmp_path, 2), shared_tmp_path)
    run = shared_tmp_path / "plain"
    records = read_records(run / "metrics.jsonl")
    assert all(record.rows_fetched > 0 for record in records)
    assert all(0 < record.figures["hit rate of the cache"] < 1 for record in records)
    assert_ranks_agree(run)
    # The same run on one rank has the same loss; a world of this process alone needs no launcher.
    if launched_rank() == 0:
        train(graph_recipe(shared_tmp_path / "one", 1, backend="loopback"), run_folder=shared_tmp_path / "alone")
        expected = read_records(shared_tmp_path / "alone" / "metrics.jsonl")
        assert [record.loss for record in records] == pytest.approx([r.loss for r in expected], rel=1e-5)
    assert [name.partition(" (")[0] for name in timelines] == ["rank 0", "rank 1"]
    for bars in timelines.values():
        check_epochs(bars, [1, 2])
        known = set(GRAPH_ROWS) | {OTHER_TRAFFIC}
        assert {bar.row for bar in bars} == known
        for row in ("wait", "update"):
            # "wait" is also for the loss, once an epoch.
            assert len(in_row(bars, row)) == 2 * STEPS + (2 if row == "wait" else 0)
        # Those of the third epoch are under way when the second ends.
        assert 2 * STEPS < len(in_row(bars, "sample")) <= 3 * STEPS
        fetches, replies = in_row(bars, "fetch"), in_row(bars, "reply")
        training = [bar for bar in (*in_row(bars, "request"), *replies) if "features" in bar.name]
        assert len(training) >= 3 * 2 * STEPS
        # Everything is posted inside a fetch and its end is seen inside one,
        assert all(any(f.begin <= moment <= f.end for f in fetches) for b in training for moment in (b.begin, b.end))
        # and rows are under way while the minibatch before is computed: all but the first.
        assert len(list(overlapping(replies, in_row(bars, "backward")))) >= 2 * STEPS - 1
        # Gradients are sent off inside the backward pass that makes them.
        sums = [bar for bar in in_row(bars, "all-reduce") if bar.name == "gradients"]
        assert len(sums) == 2 * STEPS
        assert list(overlapping(sums, in_row(bars, "backward"))) == sums


@pytest.mark.parallel(2)
def test_a_recommendation_job_of_two_ranks(
    shared_tmp_path: Path, click_recipe: Callable[..., AnyRecipe], prepare_clicks: Callable[[Path], None]
) -> None:
    if launched_rank() == 0:
        prepare_clicks(shared_tmp_path)
    timelines = trained_twice(click_recipe(shared_tmp_path), shared_tmp_path)
    assert [name.partition(" (")[0] for name in timelines] == ["rank 0", "rank 1"]
    for bars in timelines.values():
        check_epochs(bars, [1, 2])
        assert {bar.row for bar in bars} == set(LOG_ROWS) - {"vectors early"} | {OTHER_TRAFFIC}
        epochs = in_row(bars, "epoch")
        compute = [*in_row(bars, "forward"), *in_row(bars, "backward")]
        steps = len(in_row(bars, "update")) // 2
        assert steps == len(in_row(bars, "backward")) // 2 > 3
        for epoch in epochs:
            last_update = max(bar.end for bar in in_row(bars, "update") if bar.end <= epoch.end)
            for row, ahead in (("counts", 2), ("ids", 1)):
                sent = [bar for bar in in_row(bars, row) if epoch.begin <= bar.begin and bar.end <= last_update]
                assert len(sent) == steps
                # Those of the first batches leave before there is anything to compute.
                assert list(overlapping(sent, compute)) == sent[ahead:]
        sums = [bar for bar in in_row(bars, "all-reduce") if bar.name == "gradients"]
        assert len(sums) == 2 * steps
        assert list(overlapping(sums, in_row(bars, "backward"))) == sums
        # Gradients of vectors travel inside the backward pass, which ends when they have come.
        vectors = in_row(bars, "gradients")
        assert list(overlapping(vectors, in_row(bars, "backward"))) == vectors


def test_a_run_of_one_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched_size() == 1
    recipe = graph_recipe(folder, 1)
    train(recipe, run_folder=folder / "traced", trace=True)
    said = capsys.readouterr().out
    file = folder / "traced" / "trace.json"
    assert f"timeline of 2 epochs in {file}: open it at https://ui.perfetto.dev" in said
    train(recipe, run_folder=folder / "plain")
    assert_same_training(folder / "traced", folder / "plain")
    [bars] = read_bars(file).values()
    check_epochs(bars, [1, 2])
    # Nobody to talk to.
    silent = {"request", "reply", "all-reduce"}
    assert {bar.row for bar in bars} == set(GRAPH_ROWS) - silent


def test_a_short_run_and_a_resumed_one(folder: Path) -> None:
    train(graph_recipe(folder, 1, epochs=1), run_folder=folder / "short", trace=True)
    [bars] = read_bars(folder / "short" / "trace.json").values()
    check_epochs(bars, [1])
    with pytest.MonkeyPatch.context() as patch:
        end_in(patch, epoch=2)
        with pytest.raises(Killed):
            train(graph_recipe(folder, 1), run_folder=folder / "run", trace=True)
    assert (folder / "run" / "trace.json").exists(), "a failure after the timeline leaves it alone"
    train(graph_recipe(folder, 1), resume=folder / "run", trace=True)
    [bars] = read_bars(folder / "run" / "trace.json").values()
    check_epochs(bars, [3])
    (folder / "run" / "trace.json").unlink()
    # Nothing is left to train, so nothing is recorded.
    train(graph_recipe(folder, 1), resume=folder / "run", trace=True)
    assert not (folder / "run" / "trace.json").exists()


def end_in(monkeypatch: pytest.MonkeyPatch, *, epoch: int) -> None:
    """Make training end in an epoch, after one step of it."""
    whole = Trainer.train_epoch

    def train_epoch(trainer: Trainer, at_epoch: int, **options: Any) -> float:
        if at_epoch == epoch:
            trainer.train_step(at_epoch, 0)
            raise Killed("by hand")
        return whole(trainer, at_epoch, **options)

    monkeypatch.setattr(Trainer, "train_epoch", train_epoch)


def test_a_failure_while_it_records_leaves_no_timeline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_in(monkeypatch, epoch=1)
    with pytest.raises(Killed):
        train(graph_recipe(folder, 1), run_folder=folder / "run", trace=True)
    assert not (folder / "run" / "trace.json").exists()


FULL_DISK = OSError(errno.ENOSPC, "No space left on device")


def test_training_goes_on_where_the_timeline_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timeline, "write_together", Mock(return_value=FULL_DISK))
    assert train(graph_recipe(folder, 1), run_folder=folder / "run", trace=True).epochs == 3
    assert "the timeline could not be written: [Errno 28] No space left" in capsys.readouterr().out


def trace_of(spans, *, rank=2, dropped=0, offset_ns=0, uncertainty_ns=1500):
    offset = ClockOffset(0, offset_ns, uncertainty_ns)
    return RankTrace(
        rank=rank,
        host=f"host{rank}",
        data="graph",
        spans=spans,
        dropped=dropped,
        alignment=ClockAlignment(offset, offset),
    )


def make_trace(rank, count):
    spans = [Span("read", 2000 * n, 2000 * n + 1000) for n in range(count)]
    return trace_of(spans, rank=rank, dropped=rank, offset_ns=1000 * rank, uncertainty_ns=10 * rank)


@pytest.mark.parametrize("size", [1, 4])
def test_the_spans_of_all_ranks_are_in_one_file(tmp_path, size):
    path = tmp_path / "trace.json"
    counts = [5, 20_001, 0, 10_000]

    def body(world):
        return write_together(world, path, make_trace(world.rank, counts[world.rank]), origin_ns=0)

    assert Loopback.run(size, body, deadline_s=60) == [None] * size
    content = json.loads(path.read_text())
    spans = Counter(event["pid"] for event in content["traceEvents"] if event["ph"] == "X")
    assert spans == Counter({rank + 1: counts[rank] for rank in range(size)})
    about = content["otherData"]
    assert [one["host"] for one in about["ranks"]] == [f"host{rank}" for rank in range(size)]
    assert about["ranks"][-1] == {
        "rank": size - 1,
        "host": f"host{size - 1}",
        "clock_offset_us": size - 1,
        "clock_uncertainty_us": (size - 1) / 100,
        "spans": counts[size - 1],
        "spans_missing": size - 1,
    }
    assert content["displayTimeUnit"] == "ms"


@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_leaves_the_old_file_and_the_ranks_in_step(tmp_path, monkeypatch, written):
    path = tmp_path / "trace.json"
    path.write_text("old")
    left = [written]

    def write(data):
        if left[0] == 0:
            raise FULL_DISK
        left[0] -= 1

    real = timeline.open_atomically

    @contextlib.contextmanager
    def opened(path):
        with real(path):
            yield SimpleNamespace(write=write)

    monkeypatch.setattr(timeline, "open_atomically", opened)

    def body(world):
        failure = write_together(world, path, make_trace(world.rank, 30_000), origin_ns=0)
        return world.all_gather_object(str(failure), stage="still in step")

    for told in Loopback.run(3, body, deadline_s=60):
        assert "No space left" in told[0]
        assert told[1:] == ["None", "None"]
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


spans = st.builds(
    lambda stage, begin, length, operation: Span(stage, begin, begin + length, operation, 7, 9),
    st.sampled_from(["sample", "features: ids", "gradients", "invented", "epoch 1"]),
    st.integers(0, 5000),
    st.integers(0, 3000),
    st.sampled_from(["work", "exchange", "all_reduce"]),
)


def parse(trace, *, origin_ns=0):
    return json.loads(b"[" + events_of(trace, origin_ns=origin_ns) + b"]")


def most_at_once(intervals):
    """The slow way: how many are open just after each begins."""
    return max(
        (sum(b <= begin < e or (b, e) == (begin, begin) for b, e in intervals) for begin, _ in intervals), default=0
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=40))
def test_tracks_are_as_few_as_can_be(pairs):
    """That bars of one are disjoint is seen below."""
    intervals = [(begin, begin + length) for begin, length in pairs]
    spans = [Span("gradients", 125 * begin, 125 * end, "all_reduce") for begin, end in intervals]
    names = [event["args"]["name"] for event in parse(trace_of(spans)) if event["name"] == "thread_name"]
    assert names == ["all-reduce", *(f"all-reduce {number}" for number in range(2, 50))][: most_at_once(intervals)]


@given(st.lists(spans, max_size=60), st.integers(-(10**12), 10**12), st.integers(0, 10**6))
def test_every_span_becomes_one_event_and_threads_hold_disjoint_ones_and_have_a_name_and_a_place(
    spans, offset_ns, origin_before_ns
):
    origin_ns = offset_ns - origin_before_ns
    events = parse(trace_of(spans, offset_ns=offset_ns), origin_ns=origin_ns)
    complete = [event for event in events if event["ph"] == "X"]
    assert sorted(event["name"] for event in complete) == sorted(span.stage for span in spans)
    assert {event["pid"] for event in events} == {3}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    places = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    used = {event["tid"] for event in complete}
    assert names.keys() == places.keys() == used
    assert len(set(names.values())) == len(names)
    assert sorted(places.values()) == [places[thread] for thread in sorted(places)]
    # Neither 0, which viewers hide, nor the number of a process, which makes it a main thread.
    assert used.isdisjoint(range(10_000))
    by_thread = defaultdict(list)
    for event in complete:
        # What a viewer makes of the numbers: whole nanoseconds, the rest cut off.
        begin_ns, length_ns = event["ts"] * 1000, event["dur"] * 1000
        assert begin_ns == int(begin_ns) >= 0
        assert length_ns == int(length_ns) >= 0
        by_thread[event["tid"]].append((begin_ns, begin_ns + length_ns))
    for intervals in by_thread.values():
        ordered = sorted(intervals)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ordered))
    expected = sorted((span.begin_ns + origin_before_ns) // 125 * 125 for span in spans)
    assert sorted(event["ts"] * 1000 for event in complete) == expected


def test_sums_on_their_way_at_once_have_lanes_of_their_own():
    buckets = [(0, 4000), (1000, 5000), (4000, 6000), (4500, 7000), (4750, 4875)]
    events = parse(trace_of([Span("gradients", *bucket, "all_reduce", 64, 64) for bucket in buckets]))
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    placed = [(names[e["tid"]], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert sorted(placed) == [
        ("all-reduce", 0, 4),
        ("all-reduce", 4, 2),
        ("all-reduce 2", 1, 4),
        ("all-reduce 3", 4.5, 2.5),
        ("all-reduce 4", 4.75, 0.125),
    ]
    assert all(e["args"] == {"bytes reduced": 64} for e in events if e["ph"] == "X")


def test_messages_are_told_from_work():
    [exchange, work] = [
        event
        for event in parse(trace_of([Span("features: rows", 0, 9000, "exchange", 10, 20), Span("forward", 0, 9000)]))
        if event["ph"] == "X"
    ]
    assert (exchange["cat"], exchange["args"]) == ("communication", {"bytes sent": 10, "bytes received": 20})
    assert work["cat"] == "work"
    assert "args" not in work


def test_the_process_says_who_it_is_and_what_is_missing():
    events = parse(trace_of([Span("sample", 0, 1)], dropped=12))
    told = {event["name"]: event["args"] for event in events if event["name"].startswith("process_")}
    assert told["process_name"] == {"name": "rank 2 (host2)"}
    assert told["process_sort_index"] == {"sort_index": 2}
    assert told["process_labels"]["labels"] == (
        "clock within 1.5 us of rank 0's; recording stopped after 1 spans, 12 more are missing"
    )
    [event] = [event for event in parse(trace_of([])) if event["name"] == "process_labels"]
    assert "missing" not in event["args"]["labels"]


@pytest.mark.parametrize(
    ("data", "stage", "operation", "row"),
    [
        ("graph", "features: ids", "exchange", "request"),
        ("graph", "evaluation: rows", "exchange", "reply"),
        ("graph", "sample", "work", "sample"),
        ("log", "embedding rows: ids", "exchange", "ids"),
        ("log", "ids", "work", "pack"),
        ("log", "embedding bags: gradients", "exchange", "gradients"),
        ("log", "gradients", "all_reduce", "all-reduce"),
        ("graph", "epoch 12", "work", "epoch"),
        ("log", "checkpoint", "exchange", "other traffic"),
        ("graph", "invented", "work", "invented"),
    ],
)
def test_stages_have_their_row(data, stage, operation, row):
    assert row_of(Span(stage, 0, 1, operation), data) == row


@pytest.mark.parametrize(("data", "rows"), [("graph", GRAPH_ROWS), ("log", LOG_ROWS)])
def test_rows_stand_in_the_order_of_a_step(data, rows):
    known = list(rows)
    stages = [stage for stage in rows.values() if stage]
    assert len(set(stages)) == len(stages), "a stage is in one row"
    shuffled = [*known, "other traffic", "a new stage", "zebra"]
    random.Random(3).shuffle(shuffled)
    assert sorted_rows(shuffled, data) == [*known, "a new stage", "zebra", "other traffic"]
