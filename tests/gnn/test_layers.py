"""Layers against DGL, against loops and dense formulas, and their independence of the minibatch."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from windrow.gnn import layers
from windrow.gnn.layers import GATLayer, GCNLayer, GINLayer, GraphSAGELayer
from windrow.gnn.message_passing import Block
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
