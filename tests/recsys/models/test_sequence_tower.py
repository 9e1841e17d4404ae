"""Towers in front of a model: what the model inside sees, how often towers run, and which are refused."""

import pytest
import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.attention import AttentionPooling, summed
from windrow.recsys.models.click_models import DCN
from windrow.recsys.models.towers import SequenceModel
from windrow.recsys.torchrec_adapter import JaggedTensor

DIMS = {"user": 3, "item": 4}


class OwnTower(nn.Module):
    """A sum, as a user might write it; knows on how many lists it ran."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)
        self.num_lists = -1

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        self.num_lists = len(lengths)
        return summed(self.inside(items), lengths)


def make(
    tower: nn.Module, query: str | None = None, deduplication: DeduplicationOptions | None = None
) -> SequenceModel:
    generator = torch.Generator().manual_seed(0)
    inner = DCN(num_dense=0, pooled_dims={**DIMS, "seen": 4}, deep=(5,), generator=generator)
    return SequenceModel(inner, {"seen": tower}, query=query, deduplication=deduplication)


def test_model_inside_sees_one_more_embedding() -> None:
    generator = torch.Generator().manual_seed(1)
    tower = AttentionPooling(4, generator=generator)
    model = make(tower, "item")
    pooled = torch.randn(2, 7, generator=generator)
    items = torch.randn(3, 4, generator=generator)
    lengths = torch.tensor([3, 0])
    embeddings = Embeddings.of(pooled, DIMS, {"seen": JaggedTensor(items, lengths=lengths)})
    logits = model(torch.ones(2, 0), embeddings)
    attended = tower(Deduplicated(Jagged.of_lengths(items, lengths)), pooled[:, 3:])
    assert not attended[1].any()
    together = Embeddings.of(torch.cat([pooled, attended], 1), {**DIMS, "seen": 4})
    torch.testing.assert_close(logits, model.model(torch.ones(2, 0), together))


@pytest.mark.parametrize("expand_jagged", [True, False])
def test_a_tower_of_ones_own_runs_once_for_each_list(*, expand_jagged: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    inverse = torch.tensor([1, 0, 1, 1])
    lists = Deduplicated(Jagged(torch.randn(3, 4, generator=generator), torch.tensor([0, 1, 3])), inverse)
    pooled = PooledRows(tuple(DIMS), tuple(DIMS.values()), torch.randn(4, 7, generator=generator), None)
    embeddings = Embeddings([pooled], tuple(DIMS), {"seen": lists})
    logits = []
    for compute, runs in ((True, 2), (False, 4)):
        tower = OwnTower()
        model = make(tower, deduplication=DeduplicationOptions(compute=compute, expand_jagged=expand_jagged))
        logits.append(model(torch.ones(4, 0), embeddings))
        assert tower.num_lists == runs
    torch.testing.assert_close(*logits)


def test_refuses_towers_that_cannot_run_once() -> None:
    with pytest.raises(RecipeError, match=r"OwnTower.inside.0 \(Dropout\).*deduplication.compute = false"):
        make(OwnTower(nn.Dropout(0.5)))
    make(OwnTower(nn.Dropout(0.5)), deduplication=DeduplicationOptions(compute=False))


def test_target_attention_needs_a_target() -> None:
    with pytest.raises(RecipeError, match="'seen' needs a query"):
        make(AttentionPooling(4, generator=torch.Generator().manual_seed(0)))
