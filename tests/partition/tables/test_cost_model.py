"""windrow.partition.tables.cost_model and fitting: what pieces cost, learnt from measured sets, kept in a file."""

from pathlib import Path

import numpy as np
import pytest

from windrow.comm.errors import StoreError
from windrow.partition.tables import TableSpec
from windrow.partition.tables.access import zipf_shares
from windrow.partition.tables.cost_kernels import head_of, seconds_of
from windrow.partition.tables.cost_model import FEATURES, ComputeModel, Design, piece_features, roof_terms
from windrow.partition.tables.fitting import fit_compute_model, fit_roof, kendall_tau, percentage_error, split_sets
from windrow.partition.tables.population import draw_tables, draw_tasks

SPEC = TableSpec(
    name="t", rows=1000, dim=16, features=("a", "b"), lookups_per_sample=6.0, access=zipf_shares(1000, 1.0)
)


def test_features_of_a_piece() -> None:
    found = dict(zip(FEATURES, piece_features(SPEC, (0, 1000), 16, 50), strict=True))
    assert found["bags"] == 100
    assert found["lookups"] == pytest.approx(300)
    assert found["dim"] == 16
    assert found["rows"] == 1000
    assert 100 < found["distinct"] < 300
    assert sum(found[f"bin_{number}"] for number in range(17)) == pytest.approx(1)
    half = dict(zip(FEATURES, piece_features(SPEC, (0, 500), 8, 50), strict=True))
    assert half["lookups"] < 300
    # Those of three ids with one at least of the rows, which have nearly all lookups.
    assert half["bags"] == pytest.approx(100 * (1 - (1 - half["lookups"] / 300) ** 3))


def test_a_hand_made_model_adds_up(hand_made: ComputeModel) -> None:
    features = np.stack([piece_features(SPEC, (0, 1000), 16, 50), piece_features(SPEC, (0, 500), 8, 50)])
    wanted = (roof_terms(features) @ hand_made.roof[:-1]).sum() + hand_made.roof[-1]
    assert hand_made.of_sets([features])[0] == pytest.approx(wanted)
    assert hand_made.of_sets([features])[0] == pytest.approx(hand_made.of_sets([features[::-1]])[0])
    assert hand_made.seconds(np.zeros((1, hand_made.width)))[0] == 0


def measured(number: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Sets whose time is no sum: small ones that reuse rows are faster."""
    tasks = draw_tasks(draw_tables(60, 0), sizes=(1, 6), max_dim=64, most_bytes=1e12, seed=1)
    sets, seconds = [], []
    for _ in range(number):
        features = np.stack([piece_features(spec, (0, spec.rows), spec.dim, 2048) for spec in next(tasks)])
        _, lookups, distinct, dim = features[:, :4].T
        cost = 1e-5 + 2e-9 * lookups * dim * (0.3 + 0.7 * distinct / lookups)
        sets.append(features)
        seconds.append(cost.sum() + 5e-5)
    return sets, np.array(seconds)


@pytest.mark.parametrize("design", ["published", "corrected"])
def test_a_model_learns_what_was_measured(design: Design, tmp_path: Path) -> None:
    sets, seconds = measured(300)
    model = fit_compute_model(sets, seconds, design=design, origin={"threads": 1}, epochs=120)
    *_, test = split_sets(len(sets), 0)
    held_out = [sets[number] for number in test]
    found = model.of_sets(held_out)
    if design == "corrected":
        assert percentage_error(found, seconds[test]) < 0.05
        assert kendall_tau(found, seconds[test]) > 0.95
    else:
        # Few sets for networks alone: a third of the variance is left, or less.
        assert np.square(found - seconds[test]).mean() < seconds[test].var() / 3
    assert model.origin["held out: MAPE"] == pytest.approx(percentage_error(found, seconds[test]))
    # Same seed, same model; and the same after the file.
    short = [fit_compute_model(sets, seconds, design=design, origin={}, epochs=3).of_sets(held_out) for _ in range(2)]
    np.testing.assert_array_equal(*short)
    model.save(tmp_path / "costs.npz")
    read = ComputeModel.load(tmp_path / "costs.npz")
    np.testing.assert_allclose(read.of_sets(held_out), found, rtol=1e-5)
    assert read.origin == model.origin
    np.testing.assert_allclose(model.times(0.4).of_sets(held_out), 0.4 * found)


def test_without_training_times_add_up() -> None:
    sets, seconds = measured(60)
    model = fit_compute_model(sets, seconds, design="corrected", origin={}, epochs=0)
    whole, *parts = model.of_sets([sets[0], *(sets[0][n : n + 1] for n in range(len(sets[0])))])
    assert whole - model.roof[-1] == pytest.approx(sum(parts) - len(parts) * model.roof[-1])


@pytest.mark.parametrize("design", ["published", "corrected"])
def test_compiled_loops_have_the_same_head(design: Design) -> None:
    chance = np.random.default_rng(0)

    def layer(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        return chance.normal(size=(inputs, outputs)) / inputs, chance.normal(size=outputs) / 10

    model = ComputeModel(
        design=design,
        mean=np.zeros(1),
        deviation=np.ones(1),
        body=(layer(1, 2), layer(2, 6)),
        head=(layer(6, 9), layer(9, 1)),
        roof=np.linspace(1e-3, 2e-3, 8),
        origin={},
    )
    sums = np.abs(chance.normal(size=(20, model.width)))
    sums[0] = 0
    head = head_of(model)
    np.testing.assert_allclose([seconds_of(total, head) for total in sums], model.seconds(sums), rtol=1e-9)


def test_times_that_add_up_are_found_exactly(hand_made: ComputeModel) -> None:
    sets, _ = measured(60)
    seconds = hand_made.of_sets(sets)
    roof = fit_roof(sets, seconds)
    assert (roof >= 0).all()
    terms = np.stack([np.append(roof_terms(features).sum(axis=0), 1.0) for features in sets])
    np.testing.assert_allclose(terms @ roof, seconds, rtol=1e-6)


def test_files_that_are_none(tmp_path: Path, hand_made: ComputeModel) -> None:
    path = tmp_path / "costs.npz"
    with pytest.raises(StoreError, match=r"no cost model.*pretrain-cost"):
        ComputeModel.load(path)
    path.write_bytes(b"no zip")
    with pytest.raises(StoreError, match="no cost model"):
        ComputeModel.load(path)
    hand_made.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["about"] = np.array(str(arrays["about"]).replace('"format_version": 1', '"format_version": 99'))
    np.savez(path, **arrays)
    with pytest.raises(StoreError, match="format 99, expected 1"):
        ComputeModel.load(path)
