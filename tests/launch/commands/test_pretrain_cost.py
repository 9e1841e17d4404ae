"""windrow.launch.commands.pretrain_cost: measures, trains, and what it writes makes plans."""

from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.cli import build_parser
from windrow.partition.tables import PlanOptions, TableSpec, make_plan
from windrow.partition.tables.cost_model import ComputeModel
from windrow.recsys import table_profiler


def pretrain(*arguments: object) -> int:
    parsed = build_parser().parse_args(["pretrain-cost", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_a_model_that_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"tables": (1, 2), "samples": (64,), "max_dim": 8, "most_bytes": 1e6, "warm_up": 1, "repeats": 3}
    options = table_profiler.ProfileSettings
    monkeypatch.setattr(table_profiler, "ProfileSettings", lambda sets: options(sets=sets, **small))
    out = tmp_path / "costs.npz"
    assert pretrain("--out", out, "--sets", 50) == 0
    shown = capsys.readouterr().out
    assert f"50 sets, kept in {tmp_path / 'costs'}" in shown
    assert not ComputeModel.load(out).head[-1][0].any()
    assert f"wrote {out}" in shown
    assert pretrain("--out", out, "--sets", 50, "--design", "published", "--epochs", 2) == 0
    assert "50 sets" in capsys.readouterr().out
    assert ComputeModel.load(out).origin["sets"] == 50
    specs = [TableSpec(name=f"t{n}", rows=100, dim=8, features=(f"t{n}",)) for n in range(4)]
    plan = make_plan(PlanOptions(planner="neuroshard", cost_model=out, replicate_below_bytes=0), specs, 2)
    assert plan.shards or plan.replicated


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="--epochs 3 goes with a network"):
        pretrain("--out", tmp_path / "costs.npz", "--epochs", 3)
    with pytest.raises(RecipeError, match="--sets 3: expected at least 50"):
        pretrain("--out", tmp_path / "costs.npz", "--sets", 3)
    with pytest.raises(RecipeError, match=r"expected a name that ends in \.npz"):
        pretrain("--out", tmp_path / "costs.pt")
