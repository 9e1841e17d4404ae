"""Options, and the memory that they will need."""

import pytest

from windrow.comm.errors import DataError, RecipeError
from windrow.partition import options as memory
from windrow.partition.options import PartitionOptions, available_memory_bytes, check_memory, estimate_memory


def test_unknown_constraints_are_refused():
    with pytest.raises(RecipeError, match="expected different names of train"):
        PartitionOptions(balance=("trian",))


def test_streaming_needs_far_less_than_metis_whose_estimate_grows_with_the_graph():
    metis, fennel = (
        estimate_memory(10_000_000, 200_000_000, PartitionOptions(num_parts=8, method=method))
        for method in ("metis", "fennel")
    )
    assert sum(metis.values()) > 20 * sum(fennel.values())
    assert sum(fennel.values()) < 1_000_000_000
    assert "METIS" in check_memory(metis, None)
    assert sum(estimate_memory(10, 20, PartitionOptions()).values()) < sum(metis.values())


def test_shortfall_is_named():
    estimate = {"METIS": 5_000_000_000}
    assert check_memory(estimate, 5_000_000_000) == check_memory(estimate, None) == "5.00 GB (METIS 5.00 GB)"
    with pytest.raises(DataError, match=r'needs about 5.00 GB .*4.00 GB are free: short of 1000000000 bytes.*"fennel"'):
        check_memory(estimate, 4_000_000_000)
    with pytest.raises(DataError, match=r'bytes; use partition.order = "original", or a machine with more memory'):
        check_memory({"assignment": 5_000_000_000, "vertex order": 1}, 4_000_000_000)
    with pytest.raises(DataError, match="bytes; use a machine with more memory"):
        check_memory({"assignment": 5_000_000_000}, 4_000_000_000)


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, None),
        ({"meminfo": "MemTotal: 10 kB\nMemAvailable:    8 kB\n"}, 8192),
        ({"memory.max": "max\n", "memory.current": "5000\n"}, 8192),
        ({"memory.max": "6000\n", "memory.current": "5000\n"}, 1000),
        ({"memory.stat": "anon 5000\n"}, 1000),
        ({"memory.stat": "anon 1800\nshmem 200\ninactive_file 1000\nactive_file 2000\n"}, 4000),
        ({"own": "0::/slurm/job/step\n", "slurm/job/memory.max": "700\n", "slurm/job/memory.current": "300\n"}, 400),
        (
            {
                "own": "3:cpu:/other\n2:memory,hugetlb:/slurm\n0::/\n",
                "memory/slurm/memory.limit_in_bytes": "9000\n",
                "memory/slurm/memory.usage_in_bytes": "8000\n",
                "memory/slurm/memory.stat": "active_file 1\ntotal_active_file 500\n",
            },
            1500,
        ),
    ],
)
def test_available_is_the_smaller_of_machine_and_control_group(tmp_path, monkeypatch, files, available):
    """Each case but the first has what is not named from those before it; copies of files can be dropped."""
    usual = {"meminfo": "MemAvailable:    8 kB\n"} if files else {}
    if "memory.stat" in files:
        usual |= {"memory.max": "6000\n", "memory.current": "5000\n"}
    monkeypatch.setattr(memory, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    for name, text in (usual | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory_bytes() == available
