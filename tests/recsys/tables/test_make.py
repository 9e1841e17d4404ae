"""Which storage is made, and that first values do not depend on the cut."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable

WHOLE = LocalTable(name="a", rows=(0, 100), columns=(0, 16))
PART = LocalTable(name="a", rows=(30, 50), columns=(4, 12))
ROWS = {"a": 100}


@pytest.mark.parametrize("fused", [True, False])
def test_a_shard_starts_as_its_rectangle_of_the_whole_table(fused):
    whole = make_table_batch(TableOptions(), (WHOLE,), (0,), table_rows=ROWS, fused=fused, seed=5)
    part = make_table_batch(TableOptions(), (PART,), (0,), table_rows=ROWS, fused=not fused, seed=5)
    assert torch.equal(part.weight(0), whole.weight(0)[30:50, 4:12])
    assert 0.09 < whole.weight(0).abs().max() <= 0.1
    assert not part.optimizer_state(0)["sum_of_squares"].any()


def test_initial_scale():
    batch = make_table_batch(TableOptions(initial_scale=2.0), (WHOLE,), (0,), table_rows=ROWS)
    assert 1.9 < batch.weight(0).abs().max() <= 2


def test_fp16_starts_as_rounded_fp32():
    single = make_table_batch(TableOptions(), (WHOLE,), (0,), table_rows=ROWS)
    half = make_table_batch(TableOptions(precision="fp16"), (WHOLE,), (0,), table_rows=ROWS)
    assert torch.equal(half.weight(0), single.weight(0).half())


@pytest.mark.parametrize(
    ("optimizer", "fused", "expected"),
    [
        ("adagrad", None, FBGEMMTableBatch),
        ("adam", None, DenseGradientTableBatch),
        ("sgd", False, DenseGradientTableBatch),
        ("sgd", True, FBGEMMTableBatch),
    ],
)
def test_storage(optimizer, fused, expected):
    options = TableOptions(optimizer=optimizer)
    batch = make_table_batch(options, (PART,), (0, 0), table_rows=ROWS, fused=fused, pooled=False)
    assert type(batch) is expected
    assert not batch.pooled
    assert batch.output_dim == 8


def test_what_does_not_go_together():
    with pytest.raises(RecipeError, match='"adam", weight_decay = 0: tables a are to learn within'):
        make_table_batch(TableOptions(optimizer="adam"), (WHOLE,), (0,), table_rows=ROWS, fused=True)
    with pytest.raises(RecipeError, match='"fp16": tables a have dense gradients'):
        make_table_batch(TableOptions(precision="fp16"), (WHOLE,), (0,), table_rows=ROWS, fused=False)
