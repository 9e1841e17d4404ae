"""windrow.recsys.table_profiler: real tables are timed, and a measurement that was broken off goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.errors import StoreError
from windrow.partition.tables import TableSpec
from windrow.recsys.table_profiler import ProfileSettings, make_step, profile_tables, read_measured, time_steps
from windrow.recsys.tables.options import TableOptions

FEW = ProfileSettings(sets=3, tables=(1, 3), samples=(64,), warm_up=1, repeats=2, visits=2, max_dim=8, most_bytes=1e7)


def test_steps_are_timed() -> None:
    specs = [TableSpec(name=f"t{n}", rows=1000, dim=8, features=(f"t{n}",), lookups_per_sample=2.5) for n in range(2)]
    steps = time_steps(make_step(specs, 256, device=torch.device("cpu"), options=TableOptions()), repeats=4)
    assert len(steps) == 4
    assert min(steps) > 0


def test_a_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    done = []
    first = profile_tables(tmp_path, FEW, progress=lambda sets, of: done.append((sets, of)))
    assert done == sorted(done)
    assert done[-1] == (3, 3)
    assert len(first.features) == len(first.seconds) == len(first.noise) == 3
    assert {features.shape[1] for features in first.features} == {22}
    assert first.origin["threads"] == torch.get_num_threads()
    again = profile_tables(tmp_path, FEW, progress=lambda *_: pytest.fail("all sets are there"))
    np.testing.assert_array_equal(again.seconds, first.seconds)
    more = profile_tables(tmp_path, replace(FEW, sets=5))
    np.testing.assert_array_equal(more.seconds[:3], first.seconds)
    assert len(more.seconds) == 5
    fresh = profile_tables(tmp_path / "fresh", replace(FEW, sets=5))
    assert all(np.array_equal(one, other) for one, other in zip(fresh.features, more.features, strict=True))


def test_measurements_that_do_not_belong_together(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no measurements of tables: write some by"):
        read_measured(tmp_path)
    profile_tables(tmp_path, FEW)
    with pytest.raises(StoreError, match="name another folder, or delete it"):
        profile_tables(tmp_path, replace(FEW, max_dim=4))
    file = next(tmp_path.glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="delete it and measure again"):
        read_measured(tmp_path)
