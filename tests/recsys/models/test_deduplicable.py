"""Modules that may not run once for several samples are found, wherever they are."""

import pytest
import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.recsys.models.towers import check_deduplicable


class Draws(nn.Module):
    depends_on_other_samples = True


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Dropout(0.1), r"Dropout cannot run once .*: it \(Dropout\) drops entries at random \(p = 0.1\)"),
        (nn.Sequential(nn.ReLU(), nn.Sequential(nn.AlphaDropout())), r"Sequential.1.0 \(AlphaDropout\) drops"),
        (nn.Sequential(nn.BatchNorm1d(4)), r"Sequential.0 \(BatchNorm1d\) averages .*deduplication.compute = false"),
        (nn.TransformerEncoderLayer(4, 2), r"\(MultiheadAttention\) drops entries at random \(dropout = 0.1\)"),
        (nn.GRU(4, 4, 2, dropout=0.5), r"it \(GRU\) drops"),
        (nn.RReLU(), "draws its slope"),
        (nn.Sequential(Draws()), r"Sequential.0 \(Draws\) says that it depends on other samples"),
    ],
)  # fmt: skip
def test_refuses(module: nn.Module, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_deduplicable(module)


def test_takes_what_is_a_function_of_its_input() -> None:
    with torch.device("meta"):  # So that no numbers are drawn.
        check_deduplicable(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.GRU(4, 4)))
        check_deduplicable(nn.TransformerEncoderLayer(4, 2, dropout=0.0))
