"""windrow.launch.epoch_record: the line that the report reads, and lines that are none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import RankRecord, read_rank_records

RANK = RankCost(
    host="a",
    seconds=1.5,
    stage_seconds={"sample": 0.25},
    waiting_seconds={"features: rows": 0.125},
    bytes_sent={"features: rows": [0, 1234]},
    bytes_received={"features: rows": [0, 980]},
    bytes_reduced=4096,
    rows_local=10,
    rows_cached=5,
    rows_remote=20,
    peak_memory_bytes=123,
)


def test_a_line_is_what_others_read() -> None:
    line = RankRecord(epoch=3, ranks=(RANK, RankCost(host="b"))).to_json()
    assert "\n" not in line
    assert json.loads(line)["epoch"] == 3
    first, second = json.loads(line)["ranks"]
    assert first == {
        "host": "a",
        "seconds": 1.5,
        "stage_seconds": {"sample": 0.25},
        "waiting_seconds": {"features: rows": 0.125},
        "bytes_sent": {"features: rows": [0, 1234]},
        "bytes_received": {"features: rows": [0, 980]},
        "bytes_reduced": 4096,
        "rows_local": 10,
        "rows_cached": 5,
        "rows_remote": 20,
        "peak_memory_bytes": 123,
        "peak_gpu_memory_bytes": 0,
    }
    assert second["host"] == "b"


def test_round_trip(tmp_path: Path) -> None:
    records = [RankRecord(epoch=1, ranks=(RANK,)), RankRecord(epoch=2, ranks=())]
    path = tmp_path / "ranks.jsonl"
    path.write_text("".join(f"{record.to_json()}\n" for record in records) + '{"epoch": 3, "ra')
    assert read_rank_records(path) == records
    assert read_rank_records(tmp_path / "absent") == []


def test_a_line_of_an_older_version_has_no_cache() -> None:
    values = RANK.to_dict()
    del values["rows_cached"]
    old = RankRecord.from_json(json.dumps({"epoch": 1, "ranks": [values]}))
    assert old.ranks[0] == replace(RANK, rows_cached=0)


@pytest.mark.parametrize(
    "line", ["[]", "3", "{", '{"epoch": 1}', '{"ranks": []}', '{"epoch": 1, "ranks": [{"hostess": "a"}]}']
)
def test_lines_that_are_none_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ranks.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError, match=r"ranks\.jsonl, line 1"):
        read_rank_records(path)
