"""Laws of every model of clicks: one sample at a time, halves that fit, nothing for no samples."""

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from windrow.recsys.batches.batch import Batch
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.build import ModelOptions, build_model
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedJaggedTensor
from windrow.training.dropout import DropoutContext

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def make(options: ModelOptions, num_dense: int = 3, seed: int = 0) -> ClickModel:
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

    def run(
        self, model: ClickModel, context: DropoutContext | None = None, rows: slice = slice(None)
    ) -> Tensor:
        starts = [0, *self.lengths.cumsum(0).tolist()]
        start, stop, _ = rows.indices(len(self.lengths))
        history = JaggedTensor(self.items[starts[start] : starts[stop]], lengths=self.lengths[rows])
        embeddings = Embeddings.of(self.pooled[rows], {"user": DIM, "item": DIM}, {"history": history})
        logits: Tensor = model(self.dense[rows], embeddings, context)
        return logits


def inputs_of(model: nn.Module, inputs: Inputs, *, has_sequences: bool) -> "Iterator[Tensor]":
    yield from model.parameters()
    yield inputs.pooled
    if has_sequences:
        yield inputs.items


def test_logits_do_not_depend_on_the_rest_of_the_batch(options: ModelOptions) -> None:
    model, inputs = make(options), Inputs(6)
    for context in (None, inputs.context()):
        together = inputs.run(model, context)
        assert together.shape == (6,)
        parts = [
            inputs.run(model, context and inputs.context(rows), rows) for rows in (slice(0, 2), slice(2, 6))
        ]
        torch.testing.assert_close(torch.cat(parts), together)


def test_gradients_of_parts_add_up(options: ModelOptions) -> None:
    model, inputs = make(options), Inputs(6)
    wanted = list(inputs_of(model, inputs, has_sequences=bool(options.sequences)))
    together = torch.autograd.grad(inputs.run(model, inputs.context()).sum(), wanted)
    parts = [
        torch.autograd.grad(inputs.run(model, inputs.context(rows), rows).sum(), wanted)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    for whole, first, second in zip(together, *parts, strict=True):
        torch.testing.assert_close(first + second, whole, rtol=1e-4, atol=1e-5)


def test_no_samples_have_no_loss_and_zero_gradients(options: ModelOptions) -> None:
    model, inputs = make(options), Inputs(0)
    logits = inputs.run(model, inputs.context())
    assert logits.shape == (0,)
    loss = model.loss_sum(logits, inputs.batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert inputs.pooled.grad is not None


def test_works_without_dense_columns(options: ModelOptions) -> None:
    model = make(options, num_dense=0)
    inputs = Inputs(6, num_dense=0)
    assert inputs.run(model).shape == (6,)
    assert inputs.run(model).isfinite().all()


def test_weights_are_a_function_of_the_seed(options: ModelOptions) -> None:
    first, again, other = make(options), make(options), make(options, seed=1)
    state = first.state_dict()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in state.items())


def test_dropout_is_in_training_only(options: ModelOptions) -> None:
    model, inputs = make(options), Inputs(6)
    changed = not torch.equal(inputs.run(model), inputs.run(model, inputs.context()))
    assert changed == (options.dropout > 0 and bool(options.top if options.kind == "dlrm" else options.deep))


def test_a_few_steps_lower_the_loss(options: ModelOptions) -> None:
    model, inputs = make(options), Inputs(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        loss = model.loss_sum(inputs.run(model), inputs.batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] * 0.5


def test_loss_is_the_sum_of_the_cross_entropies() -> None:
    model, inputs = make(OPTIONS[0]), Inputs(3)
    logits = torch.tensor([-1.0, 0.5, 2.0])
    probabilities = torch.sigmoid(logits)
    expected = -(1 - probabilities[0]).log() - probabilities[1].log() - (1 - probabilities[2]).log()
    torch.testing.assert_close(model.loss_sum(logits, inputs.batch), expected)
