"""windrow.launch.timeline: one file from all ranks, whole or not at all."""

import errno
import json
import os

import pytest

from windrow.comm.clock import ClockAlignment, ClockOffset
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Span
from windrow.launch import timeline as trace_file
from windrow.launch.timeline import write_alone, write_together
from windrow.launch.trace_events import EVENTS_PER_PIECE, RankTrace


def make_trace(rank, count):
    offset = ClockOffset(0, 1000 * rank, 10 * rank)
    return RankTrace(
        rank=rank,
        host=f"host{rank}",
        data="log",
        spans=[Span("read", 2000 * n, 2000 * n + 1000) for n in range(count)],
        dropped=rank,
        alignment=ClockAlignment(offset, offset),
    )


def spans_of(content):
    """Process -> number of its events."""
    found = {}
    for event in content["traceEvents"]:
        found[event["pid"]] = found.get(event["pid"], 0) + (event["ph"] == "X")
    return found


def test_the_spans_of_all_ranks_are_in_one_file(spmd, shared_tmp_path):
    path = shared_tmp_path / "trace.json"
    # Unequal numbers of pieces; one rank has next to none.
    counts = [5, 2 * EVENTS_PER_PIECE + 1, 0, EVENTS_PER_PIECE]

    def body(world):
        return world.size, write_together(
            world, path, make_trace(world.rank, counts[world.rank]), origin_ns=0
        )

    results = spmd(body)
    size = results[0][0]
    assert results == [(size, None)] * size
    content = json.loads(path.read_text())
    assert spans_of(content) == {rank + 1: counts[rank] for rank in range(size)}
    about = content["otherData"]
    assert about["complete"] is True
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

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= 1
            return self.file.write(data)

    real = trace_file.open_atomically

    class Opened:
        def __init__(self, path):
            self.inner = real(path)

        def __enter__(self):
            return Full(self.inner.__enter__())

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(trace_file, "open_atomically", Opened)

    def body(world):
        failure = write_together(world, path, make_trace(world.rank, 3 * EVENTS_PER_PIECE), origin_ns=0)
        return world.all_gather_object(str(failure), stage="still in step")

    for told in Loopback.run(3, body, deadline_s=60):
        assert "No space left" in told[0]
        assert told[1:] == ["None", "None"]
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_rank_alone_says_why(tmp_path):
    path = tmp_path / "trace-rank-1.json"
    write_alone(path, make_trace(1, 4), origin_ns=0, reason="KeyboardInterrupt()")
    content = json.loads(path.read_text())
    assert spans_of(content) == {2: 4}
    assert content["otherData"]["complete"] is False
    assert content["otherData"]["ended by"] == "KeyboardInterrupt()"


def test_a_rank_alone_without_the_folder_cannot_write(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_alone(tmp_path / "elsewhere" / "trace.json", make_trace(0, 1), origin_ns=0, reason="")
