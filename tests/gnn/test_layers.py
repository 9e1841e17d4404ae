"""Layers against DGL, against loops and dense formulas, and their independence of the minibatch."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.gnn import layers
from windrow.gnn.layers import GATLayer, GCNLayer, GINLayer, GraphSAGELayer, RGATLayer, RGCNLayer
from windrow.gnn.message_passing import Block
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import typed_community_graph
from windrow.training.dense import make_linear

IN_AND_OUT = pytest.mark.parametrize(("in_features", "out_features"), [(12, 5), (5, 12)])


@IN_AND_OUT
def test_graphsage_equals_dgl(assert_equals_dgl, generator, in_features, out_features):
    layer = GraphSAGELayer(in_features, out_features, generator=generator)
    nn.init.normal_(layer.self_linear.bias, generator=generator)
    names = [
        ("self_linear.weight", "fc_self.weight"),
        ("self_linear.bias", "fc_self.bias"),
        ("neighbor_linear.weight", "fc_neigh.weight"),
    ]
    assert_equals_dgl(layer, ("SAGEConv", (in_features, out_features, "mean"), {}), in_features, names)


@pytest.mark.parametrize("normalisation", ["both", "right", "none"])
@IN_AND_OUT
def test_gcn_equals_dgl(assert_equals_dgl, generator, normalisation, in_features, out_features):
    layer = GCNLayer(in_features, out_features, normalisation=normalisation, generator=generator)
    nn.init.normal_(layer.linear.bias, generator=generator)
    options = {"norm": normalisation, "allow_zero_in_degree": True}
    names = [("linear.weight", "weight"), ("linear.bias", "bias")]
    assert_equals_dgl(layer, ("GraphConv", (in_features, out_features), options), in_features, names)


@pytest.mark.parametrize("combine", ["concatenate", "mean"])
@pytest.mark.parametrize("heads", [1, 3])
def test_gat_equals_dgl(assert_equals_dgl, generator, combine, heads):
    layer = GATLayer(8, 6, heads=heads, combine=combine, generator=generator)
    reference = ("GATConv", (8, layer.head_features, heads), {"allow_zero_in_degree": True, "bias": False})
    names = zip(
        ("linear.weight", "source_attention", "destination_attention"), ("fc.weight", "attn_l", "attn_r"), strict=True
    )
    shape = (lambda rows: rows.flatten(1)) if combine == "concatenate" else (lambda rows: rows.mean(1))
    assert_equals_dgl(layer, reference, 8, names, shape)


def test_gin_equals_dgl(assert_equals_dgl, generator):
    layer = GINLayer(7, 4, generator=generator)
    nn.init.normal_(layer.hidden_linear.bias, generator=generator)
    with torch.no_grad():
        layer.epsilon.fill_(0.3)
    mlp = nn.Sequential(make_linear(7, 4, generator=generator), nn.ReLU(), make_linear(4, 4, generator=generator))
    names = [
        ("epsilon", "eps"),
        ("hidden_linear.weight", "apply_func.0.weight"),
        ("hidden_linear.bias", "apply_func.0.bias"),
        ("output_linear.weight", "apply_func.2.weight"),
        ("output_linear.bias", "apply_func.2.bias"),
    ]
    assert_equals_dgl(layer, ("GINConv", (mlp, "sum"), {"init_eps": 0.3, "learn_eps": True}), 7, names)


def symmetric_graph(weighted=False):
    drawn = torch.rand(30, 30, generator=torch.Generator().manual_seed(5))
    adjacency = torch.maximum(drawn, drawn.T)
    adjacency = torch.where(adjacency < 0.6, adjacency if weighted else 1.0, 0.0)
    adjacency[3] = adjacency[:, 3] = 0
    places = adjacency.nonzero(as_tuple=True)
    indptr = torch.zeros(31, dtype=torch.int64)
    indptr[1:] = (adjacency > 0).sum(1).cumsum(0)
    return replace(Block.whole(indptr, places[1]), edge_weight=adjacency[places] if weighted else None), adjacency


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalisation", ["both", "right", "none"])
@pytest.mark.parametrize("projects_first", [True, False])
def test_gcn_equals_the_dense_formula_in_both_orders(generator, monkeypatch, projects_first, normalisation, weighted):
    monkeypatch.setattr(layers, "_projects_first", lambda *shape: projects_first)
    block, adjacency = symmetric_graph(weighted)
    layer = GCNLayer(6, 4, normalisation=normalisation, generator=generator)
    x = torch.randn(30, 6, generator=generator)
    sums = adjacency.sum(1, keepdim=True)
    sums[sums == 0] = 1
    left, right = {"both": (sums.rsqrt(), sums.rsqrt()), "right": (1 / sums, 1), "none": (1, 1)}[normalisation]
    torch.testing.assert_close(layer(block, x), layer.linear(left * (adjacency @ (right * x))))


def test_projection_comes_first_where_that_costs_less():
    dense = Block.whole(torch.arange(0, 1001, 100), torch.zeros(1000, dtype=torch.int64))
    x = torch.zeros(10, 64, requires_grad=True)
    assert layers._projects_first(dense, x, 8)
    assert not layers._projects_first(dense, x, 65)
    one_edge_each = Block(num_src=1000, num_dst=10, indptr=torch.arange(11), indices=torch.arange(10))
    assert not layers._projects_first(one_edge_each, torch.zeros(1000, 64, requires_grad=True), 8)


@pytest.mark.parametrize("weighted", [False, True])
def test_with_graph_degrees_a_subset_of_destinations_gives_the_same_rows(generator, weighted):
    whole, adjacency = symmetric_graph(weighted)
    layer = GCNLayer(6, 4, generator=generator)
    x = torch.randn(30, 6, generator=generator)
    edges = slice(int(whole.indptr[7]))
    some = Block(
        num_src=30,
        num_dst=7,
        indptr=whole.indptr[:8],
        indices=whole.indices[edges],
        source_degrees=adjacency.sum(1),
        edge_weight=whole.edge_weight[edges] if weighted else None,
    )
    torch.testing.assert_close(layer(some, x), layer(whole, x)[:7])


# ---- types


@pytest.fixture(scope="module")
def typed_block():
    """A sampled hop of a graph with types."""
    graph = typed_community_graph(60, 3, seed=1)
    sampler = NeighborSampler(graph.indptr, graph.indices, [3, 2], seed=0, edge_type=graph.edge_type, types=graph.types)
    return sampler.sample(graph.train_ids[:7], epoch=0, step=0).blocks[0]


def pyg_layer(block, layer, make_conv):
    """PyG's ``HeteroConv`` with the weights of a layer of ours, as a function of the rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        nn_of_pyg = pytest.importorskip("torch_geometric.nn")
    types = block.types
    with torch.random.fork_rng(devices=[]):
        convs = nn_of_pyg.HeteroConv({edge: make_conv(nn_of_pyg, n) for n, edge in enumerate(types.edges)}, aggr="sum")

    def forward(x):
        rows = block.typed.split(x)
        found = convs(rows, block.typed.edge_index)
        own = {
            name: rows[name] @ layer.self_weight[place].T + layer.bias[place]
            for place, name in enumerate(types.vertices)
        }
        return block.typed.join({name: own[name] + found.get(name, 0) for name in own})

    return forward


def check_equal(block, layer, theirs, generator):
    """Outputs, and gradients of the input and of all weights of ours, against PyG with them."""
    x = torch.randn(block.num_src, 6, generator=generator)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [forward(own) for forward, own in zip((lambda own: layer(block, own), theirs), inputs, strict=True)]
    upstream = torch.randn(outputs[0].shape, generator=generator)
    gradients = [
        torch.autograd.grad(output, [own, *layer.parameters()], upstream)
        for output, own in zip(outputs, inputs, strict=True)
    ]
    for found, expected in ((outputs[0], outputs[1]), *zip(*gradients, strict=True)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_rgcn_equals_pyg(typed_block, generator):
    layer = RGCNLayer(6, 4, types=typed_block.types, generator=generator)
    nn.init.normal_(layer.bias, generator=generator)

    def make(nn_of_pyg, number):
        conv = nn_of_pyg.SAGEConv((6, 6), 4, root_weight=False, bias=False)
        del conv.lin_l.weight
        conv.lin_l.weight = layer.relation_weight[number]
        return conv

    check_equal(typed_block, layer, pyg_layer(typed_block, layer, make), generator)


@pytest.mark.parametrize("combine", ["concatenate", "mean"])
def test_rgat_equals_pyg(typed_block, generator, combine):
    layer = RGATLayer(6, 4, heads=2, combine=combine, types=typed_block.types, generator=generator)
    nn.init.normal_(layer.bias, generator=generator)
    columns = 2 if combine == "concatenate" else 4

    def make(nn_of_pyg, number):
        concat = combine == "concatenate"
        conv = nn_of_pyg.GATConv((6, 6), columns, heads=2, concat=concat, add_self_loops=False, bias=False)
        del conv.lin_src.weight, conv.lin_dst.weight, conv.att_src, conv.att_dst
        conv.lin_src.weight = layer.relation_weight[number]
        conv.att_src = layer.source_attention[number].unsqueeze(0)
        # The first column of a head is the score.
        first = torch.eye(columns)[:1].expand(2, columns)
        conv.att_dst = first.unsqueeze(0)
        scores = layer.destination_attention[number].unsqueeze(1)
        conv.lin_dst.weight = torch.cat([scores, scores.new_zeros(2, columns - 1, 6)], 1).flatten(0, 1)
        return conv

    check_equal(typed_block, layer, pyg_layer(typed_block, layer, make), generator)


def test_heads_must_divide_columns_of_types(typed_block, generator):
    with pytest.raises(RecipeError, match="3 attention heads cannot share 4 columns"):
        RGATLayer(6, 4, heads=3, types=typed_block.types, generator=generator)
