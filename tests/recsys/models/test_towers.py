import pytest
import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.attention import AttentionPooling
from windrow.recsys.models.click_models import DCN
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.towers import FeatureMLPModel, SequenceModel

DIMS = {"user": 3, "item": 4}
DEEP = ModelOptions(kind="dcn", deep=(5,))


class OwnTower(nn.Module):
    """A sum, as a user might write it; knows on how many lists it ran."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)
        self.num_lists = -1

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        self.num_lists = len(lengths)
        return torch.segment_reduce(self.inside(items), "sum", lengths=lengths)


def make(
    tower: nn.Module, query: str | None = None, deduplication: DeduplicationOptions | None = None
) -> SequenceModel:
    generator = torch.Generator().manual_seed(0)
    inner = DCN(DEEP, num_dense=0, pooled_dims={**DIMS, "seen": 4}, generator=generator)
    return SequenceModel(inner, {"seen": tower}, query=query, deduplication=deduplication)


def test_model_inside_sees_one_more_embedding() -> None:
    generator = torch.Generator().manual_seed(1)
    tower = AttentionPooling(4, generator=generator)
    model = make(tower, "item")
    pooled = torch.randn(2, 7, generator=generator)
    items = torch.randn(3, 4, generator=generator)
    lengths = torch.tensor([3, 0])
    lists = Deduplicated(Jagged.of_lengths(items, lengths))
    embeddings = Embeddings.of(pooled, DIMS, {"seen": lists})
    logits = model(torch.ones(2, 0), embeddings)
    attended = tower(lists, pooled[:, 3:])
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


def test_towers_that_cannot_run_once_may_run_for_each_sample() -> None:
    make(OwnTower(nn.Dropout(0.5)), deduplication=DeduplicationOptions(compute=False))


def test_target_attention_needs_a_target() -> None:
    with pytest.raises(RecipeError, match="'seen' needs a query"):
        make(AttentionPooling(4, generator=torch.Generator().manual_seed(0)))


def make_mlps(deduplication: DeduplicationOptions | None = None) -> FeatureMLPModel:
    generator = torch.Generator().manual_seed(0)
    inner = DCN(DEEP, num_dense=1, pooled_dims=DIMS, generator=generator)
    return FeatureMLPModel(inner, DIMS, hidden=(6, 2), deduplication=deduplication, generator=generator)


def test_formula() -> None:
    model = make_mlps()
    generator = torch.Generator().manual_seed(1)
    dense, user, item = (torch.randn(5, columns, generator=generator) for columns in (1, 3, 4))
    changed = [output(mlp(part)) for output, mlp, part in zip(model.outputs, model.mlps, (user, item), strict=True)]
    expected = model.model(dense, Embeddings.of(torch.cat(changed, 1), DIMS))
    torch.testing.assert_close(model(dense, Embeddings.of(torch.cat([user, item], 1), DIMS)), expected)
    # Groups may hold features in another order.
    turned = Embeddings.of(torch.cat([item, user], 1), {"item": 4, "user": 3})
    torch.testing.assert_close(model(dense, Embeddings(turned.groups, ("user", "item"))), expected)


def test_runs_on_the_rows_that_were_looked_up() -> None:
    rows, inverse = torch.ones(2, 7), torch.tensor([0, 1, 1, 0, 1])
    embeddings = Embeddings([PooledRows(("user", "item"), (3, 4), rows, inverse)], ("user", "item"))
    for compute, expected in ((True, [2, 2]), (False, [5, 5])):
        model, seen = make_mlps(DeduplicationOptions(compute=compute)), []
        for mlp in model.mlps:
            mlp.register_forward_hook(lambda _, given, result: seen.append(len(result)))  # noqa: B023
        model(torch.ones(5, 1), embeddings)
        assert seen == expected


def test_sequences_reach_the_model_inside() -> None:
    model, seen = make_mlps(), []
    model.model.finish = lambda begun, embeddings, context: seen.append(embeddings) or begun  # type: ignore[method-assign]
    sequences = {"seen": Deduplicated(Jagged(torch.zeros(3, 4), torch.tensor([0, 1, 3])))}
    given = Embeddings.of(torch.zeros(2, 7), DIMS)
    model(torch.zeros(2, 1), Embeddings(given.groups, given.order, sequences))
    assert seen[0].sequences == sequences


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
def test_refuses_towers_that_cannot_run_once(module: nn.Module, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make(module)


def test_takes_what_is_a_function_of_its_input() -> None:
    with torch.device("meta"):  # So that no numbers are drawn.
        tower = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.GRU(4, 4))
        tower.append(nn.TransformerEncoderLayer(4, 2, dropout=0.0))
    make(tower)
