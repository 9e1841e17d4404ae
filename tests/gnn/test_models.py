"""Models: weights from the seed alone, subsets equal wholes, parity with DGL's stacks."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.training.dropout import DropoutContext

KINDS = ("graphsage", "gcn", "gat", "gin")
EVERY_OPTION = [
    ModelOptions(kind=kind, hidden=8, num_layers=2, heads=2, normalise=normalise, residual=normalise == "layer")
    for kind, normalise in itertools.product(KINDS, ("none", "layer"))
]


def option_name(options):
    return f"{options.kind}-{'residual' if options.residual else 'plain'}"


def a_graph(num_vertices=40, num_edges=200):
    generator = torch.Generator().manual_seed(2)
    destinations = torch.randint(0, num_vertices, (num_edges,), generator=generator)
    indptr = torch.zeros(num_vertices + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(destinations, minlength=num_vertices).cumsum(0)
    indices = torch.randint(0, num_vertices, (num_edges,), generator=generator)
    return Block.whole(indptr, indices)


def first_destinations(graph, count):
    return Block(
        num_src=graph.num_src,
        num_dst=count,
        indptr=graph.indptr[: count + 1],
        indices=graph.indices[: int(graph.indptr[count])],
        source_degrees=graph.degrees,
    )


def features(num_vertices=40):
    return torch.randn(num_vertices, 5, generator=torch.Generator().manual_seed(3))


def dropout_context(step=0):
    return DropoutContext(seed=0, epoch=0, step=step, row_ids=torch.arange(40))


@pytest.mark.parametrize("options", EVERY_OPTION, ids=option_name)
def test_weights_depend_on_the_seed_alone(options):
    before = torch.random.get_rng_state()
    first = build_model(options, in_features=5, out_features=3, seed=7)
    second = build_model(options, in_features=5, out_features=3, seed=7)
    other = build_model(options, in_features=5, out_features=3, seed=8)
    assert torch.equal(torch.random.get_rng_state(), before)
    for parameter, same in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(parameter, same)
        assert torch.isfinite(parameter).all()
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(parameter, changed) for parameter, changed in pairs)


@pytest.mark.parametrize("options", EVERY_OPTION, ids=option_name)
def test_a_subset_of_destinations_gets_the_rows_of_the_whole(options):
    model = build_model(options, in_features=5, out_features=3, seed=7)
    # Taken as a sample of itself, the whole graph must carry its degrees too, for GCN.
    graph = first_destinations(a_graph(), 40)
    whole = model([graph, graph], features())
    some = model([graph, first_destinations(graph, 9)], features())
    torch.testing.assert_close(some, whole[:9], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", EVERY_OPTION, ids=option_name)
def test_every_parameter_gets_a_gradient(options):
    model = build_model(options, in_features=5, out_features=3, seed=7)
    output: Tensor = model([a_graph()] * 2, features())
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("residual", [False, True])
def test_dropout_needs_a_context_and_follows_it(residual, activation):
    options = ModelOptions(hidden=8, num_layers=2, dropout=0.5, residual=residual, activation=activation)
    model = build_model(options, in_features=5, out_features=3, seed=7)
    blocks, x = [a_graph()] * 2, features()
    quiet = model(blocks, x)
    assert torch.equal(model(blocks, x), quiet)
    noisy = model(blocks, x, dropout_context())
    assert not torch.equal(noisy, quiet)
    assert torch.equal(model(blocks, x, dropout_context()), noisy)
    assert not torch.equal(model(blocks, x, dropout_context(step=1)), noisy)


def plain_sage(model, adjacency, x):
    for index, layer in enumerate(model.layers):
        x = layer.self_linear(x) + layer.neighbor_linear(adjacency @ x)  # type: ignore[operator]
        if index < len(model.layers) - 1:
            x = model.norms[index](x).relu()
    return x


def residual_sage(model, adjacency, x):
    x = functional.gelu(model.input_linear(x))
    for norm, layer, linear in zip(model.norms, model.layers, model.layer_linears, strict=False):
        h = norm(x)
        h = layer.self_linear(h) + layer.neighbor_linear(adjacency @ h)  # type: ignore[operator]
        x = x + linear(functional.gelu(h))
    output: Tensor = model.output_linear(model.norms[-1](x))
    return output


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        (ModelOptions(hidden=8, num_layers=3, normalise="layer"), plain_sage),
        (ModelOptions(hidden=8, num_layers=2, residual=True, normalise="layer", activation="gelu"), residual_sage),
    ],
)
def test_equals_the_formula_on_dense_matrices(options, reference):
    model = build_model(options, in_features=5, out_features=3, seed=7)
    graph, x = a_graph(), features()
    adjacency = torch.zeros(40, 40)
    adjacency.index_put_((graph.edge_destinations, graph.indices), torch.ones(()), accumulate=True)
    adjacency = adjacency / graph.degrees.clamp(min=1).unsqueeze(1)
    expected = reference(model, adjacency, x)
    torch.testing.assert_close(model([graph] * options.num_layers, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [[], [a_graph()] * 3])
def test_refuses_another_number_of_blocks(blocks):
    model = build_model(ModelOptions(hidden=8, num_layers=2), in_features=5, out_features=3, seed=7)
    with pytest.raises(RecipeError, match=f"{len(blocks)} blocks for a model of 2 layers"):
        model(blocks, features())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_weights": True}, 'model.edge_weights = true with model.kind = "graphsage"'),
        ({"kind": "gat", "hidden": 10, "heads": 4}, "hidden = 10 is no multiple of model"),
    ],
)
def test_options_that_do_not_go_together(changes, message):
    with pytest.raises(RecipeError, match=message):
        ModelOptions(**changes)
