import pytest
import torch
from torch import Tensor
from torch.nn import functional

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import DCN, DLRM, MLP, ClickModel, CrossNetwork, PairwiseDots
from windrow.recsys.models.options import ModelOptions, Structure
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor
from windrow.training.dropout import DropoutContext

OPTIONS = [
    ModelOptions(bottom=(6,), top=(8, 4), dropout=0.5),
    ModelOptions(bottom=(6,), top=(8,), embeddings_in_top=True),
    ModelOptions(kind="dcn", deep=(8,), cross_layers=2, dropout=0.5),
    ModelOptions(kind="dcn", deep=(8,), structure="parallel", low_rank=3),
    ModelOptions(bottom=(6,), top=(8,), sequences=("history",), sequence_query="item", dropout=0.5),
    ModelOptions(kind="dcn", deep=(), sequences=("history",), sequence_query="item", sequence_hidden=()),
    ModelOptions(bottom=(6,), top=(8,), sequences=("history",), sequence_pooling="self", sequence_heads=2),
    ModelOptions(kind="dcn", deep=(8,), sequences=("history",), sequence_pooling="self", feature_mlp=(5,)),
]
DIM = 4


@pytest.fixture(params=OPTIONS, ids=lambda options: f"{options.kind}-{OPTIONS.index(options)}")
def options(request: pytest.FixtureRequest) -> ModelOptions:
    chosen: ModelOptions = request.param
    return chosen


def make_model(options: ModelOptions, num_dense: int = 3, seed: int = 0) -> ClickModel:
    return build_model(
        options,
        num_dense=num_dense,
        pooled_dims={"user": DIM, "item": DIM},
        sequence_dims=dict.fromkeys(options.sequences, DIM),
        seed=seed,
    )


class Inputs:
    """Random inputs of some samples, the third of which has an empty history."""

    def __init__(self, num_samples: int, num_dense: int = 3) -> None:
        generator = torch.Generator().manual_seed(0)
        self.dense = torch.randn(num_samples, num_dense, generator=generator)
        self.pooled = torch.randn(num_samples, 2 * DIM, generator=generator).requires_grad_()
        self.lengths = torch.tensor([2, 1, 0, 5, 3, 1][:num_samples])
        self.items = torch.randn(int(self.lengths.sum()), DIM, generator=generator).requires_grad_()
        self.row_ids = torch.arange(num_samples) + 1000
        labels = (torch.arange(num_samples) % 2).float()
        empty = KeyedJaggedTensor([], torch.empty(0), lengths=torch.empty(0, dtype=torch.int64))
        self.batch = Batch(self.dense, empty, labels, self.row_ids)

    def context(self, rows: slice = slice(None)) -> DropoutContext:
        return DropoutContext(seed=1, epoch=2, step=3, row_ids=self.row_ids[rows])

    def run(self, model: ClickModel, context: DropoutContext | None = None, rows: slice = slice(None)) -> Tensor:
        starts = [0, *self.lengths.cumsum(0).tolist()]
        start, stop, _ = rows.indices(len(self.lengths))
        history = Deduplicated(Jagged.of_lengths(self.items[starts[start] : starts[stop]], self.lengths[rows]))
        embeddings = Embeddings.of(self.pooled[rows], {"user": DIM, "item": DIM}, {"history": history})
        logits: Tensor = model(self.dense[rows], embeddings, context)
        return logits


def test_logits_and_gradients_do_not_depend_on_the_rest_of_the_batch(options: ModelOptions) -> None:
    model, inputs = make_model(options), Inputs(6)
    leaves = [*model.parameters(), inputs.pooled, *([inputs.items] if options.sequences else [])]
    for context in (None, inputs.context()):
        together = inputs.run(model, context)
        assert together.shape == (6,)
        parts = [inputs.run(model, context and inputs.context(rows), rows) for rows in (slice(0, 2), slice(2, 6))]
        torch.testing.assert_close(torch.cat(parts), together)
        whole, *shares = (torch.autograd.grad(logits.sum(), leaves) for logits in (together, *parts))
        for expected, *found in zip(whole, *shares, strict=True):
            torch.testing.assert_close(sum(found), expected, rtol=1e-4, atol=1e-5)


def test_no_samples_have_no_loss_and_zero_gradients(options: ModelOptions) -> None:
    model, inputs = make_model(options), Inputs(0)
    logits = inputs.run(model, inputs.context())
    assert logits.shape == (0,)
    loss = model.loss_sum(logits, inputs.batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert inputs.pooled.grad is not None


def test_weights_are_a_function_of_the_seed(options: ModelOptions) -> None:
    first, again, other = make_model(options), make_model(options), make_model(options, seed=1)
    state = first.state_dict()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in state.items())


def test_dropout_is_in_training_only(options: ModelOptions) -> None:
    model, inputs = make_model(options), Inputs(6)
    changed = not torch.equal(inputs.run(model), inputs.run(model, inputs.context()))
    assert changed == (options.dropout > 0 and bool(options.top if options.kind == "dlrm" else options.deep))


def test_loss_is_the_sum_of_the_cross_entropies() -> None:
    model, inputs = make_model(OPTIONS[0]), Inputs(3)
    logits = torch.tensor([-1.0, 0.5, 2.0])
    probabilities = torch.sigmoid(logits)
    expected = -(1 - probabilities[0]).log() - probabilities[1].log() - (1 - probabilities[2]).log()
    torch.testing.assert_close(model.loss_sum(logits, inputs.batch), expected)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_formula_of_mlp() -> None:
    mlp = MLP([5, 7, 3], generator=generator())
    x = torch.randn(4, 5, generator=generator(1))
    expected = x
    for linear in mlp.layers:
        expected = torch.relu(functional.linear(expected, linear.weight, linear.bias))  # type: ignore[arg-type]
    torch.testing.assert_close(mlp(x), expected)
    assert mlp.out_features == 3
    assert MLP([5], generator=generator())(x) is x


def test_every_layer_drops_at_a_place_of_its_own() -> None:
    context = DropoutContext(seed=0, epoch=0, step=0, row_ids=torch.arange(64))
    mlp = MLP([16, 16, 16], dropout=0.5, generator=generator())
    with torch.no_grad():
        for layer in mlp.layers:
            layer.weight.copy_(torch.eye(16))  # type: ignore[operator, union-attr]
    kept = mlp(torch.rand(64, 16, generator=generator()) + 1, context) > 0
    assert abs(float(kept.float().mean()) - 0.25) < 0.1


def slow_dots(vectors: Tensor) -> Tensor:
    columns = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(vectors.shape[1]) for j in range(i)]
    return torch.stack(columns, 1) if columns else vectors.new_zeros(len(vectors), 0)


@pytest.mark.parametrize("num_samples", [0, 1, 5])
@pytest.mark.parametrize("num_vectors", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "batched"])
def test_values_and_gradients(num_samples: int, num_vectors: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (num_samples, num_vectors, 4)
    vectors = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
    dots = PairwiseDots(num_vectors)
    result, expected = dots(vectors), slow_dots(vectors)
    assert result.shape == (num_samples, dots.num_pairs)
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(result.shape, generator=generator, dtype=dtype)
    (mine,) = torch.autograd.grad(result, vectors, upstream)
    (slow,) = torch.autograd.grad((expected * upstream).sum() + 0 * vectors.sum(), vectors)
    torch.testing.assert_close(mine, slow)


@pytest.mark.parametrize("low_rank", [None, 2])
@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_formula_of_cross_network(num_layers: int, low_rank: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    network = CrossNetwork(5, num_layers, low_rank=low_rank, generator=generator)
    x0 = torch.randn(4, 5, generator=generator)
    expected = x0
    for layer, wide in enumerate(network.wide):
        weight = wide.weight if low_rank is None else wide.weight @ network.narrow[layer].weight
        expected = x0 * (expected @ weight.T + wide.bias) + expected
    torch.testing.assert_close(network(x0), expected)


@pytest.mark.parametrize("embeddings_in_top", [False, True])
@pytest.mark.parametrize("num_dense", [0, 3])
def test_formula_of_dlrm(num_dense: int, *, embeddings_in_top: bool) -> None:
    options = ModelOptions(bottom=(6,), top=(8,), embeddings_in_top=embeddings_in_top)
    model = DLRM(options, num_dense=num_dense, pooled_dims={"a": 4, "b": 4}, generator=generator())
    dense, a, b = (torch.randn(5, columns, generator=generator(1)) for columns in (num_dense, 4, 4))
    dots = [(b * a).sum(1)]
    parts = [a, b] if embeddings_in_top else []
    if model.bottom is not None:
        v = model.bottom(dense)
        dots = [(a * v).sum(1), (b * v).sum(1), *dots]
        parts = [v, *parts]
    expected = model.logit(model.top(torch.cat([*parts, torch.stack(dots, 1)], 1)))[:, 0]
    torch.testing.assert_close(model(dense, Embeddings.of(torch.cat([a, b], 1), {"a": 4, "b": 4})), expected)
    assert not model.dots.state_dict()


@pytest.mark.parametrize("low_rank", [None, 2])
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_formula_of_dcn(structure: Structure, low_rank: int | None) -> None:
    options = ModelOptions(kind="dcn", structure=structure, cross_layers=2, low_rank=low_rank, deep=(6,))
    model = DCN(options, num_dense=2, pooled_dims={"a": 4, "b": 3}, generator=generator())
    dense, pooled = torch.randn(5, 2, generator=generator(1)), torch.randn(5, 7, generator=generator(2))
    x0 = torch.cat([dense, pooled], 1)
    if structure == "stacked":
        expected = model.logit(model.deep(model.cross(x0)))
    else:
        expected = model.logit(torch.cat([model.cross(x0), model.deep(x0)], 1))
    torch.testing.assert_close(model(dense, Embeddings.of(pooled, {"a": 4, "b": 3})), expected[:, 0])


@pytest.mark.parametrize(
    ("kind", "num_dense", "dims", "message"),
    [
        (DLRM, 0, {"a": 4}, r"only the feature 'a'.*embeddings_in_top"),
        (DLRM, 0, {"a": 4, "b": 8}, "'a' has 4 columns and 'b' 8"),
        (DLRM, 3, {}, "no features"),
        (DCN, 0, {}, "neither dense columns nor features"),
    ],
)
def test_refuses_features_that_make_no_model(
    kind: type[ClickModel], num_dense: int, dims: dict[str, int], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        kind(ModelOptions(), num_dense=num_dense, pooled_dims=dims, generator=generator())


@pytest.mark.parametrize(("num_dense", "embeddings_in_top"), [(0, True), (2, False)])
def test_one_feature_alone(num_dense: int, *, embeddings_in_top: bool) -> None:
    options = ModelOptions(embeddings_in_top=embeddings_in_top)
    model = DLRM(options, num_dense=num_dense, pooled_dims={"a": 4}, generator=generator())
    assert model(torch.ones(2, num_dense), Embeddings.of(torch.ones(2, 4), {"a": 4})).shape == (2,)


def test_refuses_other_features_than_it_was_made_for() -> None:
    with pytest.raises(DataError, match="4 vectors of each sample, but the model was made for 3"):
        PairwiseDots(3)(torch.zeros(2, 4, 8))
