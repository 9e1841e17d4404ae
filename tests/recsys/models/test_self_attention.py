import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.self_attention import EncoderLayer, ListBuckets, SelfAttentionPooling, _bucket_limit


def make(layers: int) -> SelfAttentionPooling:
    options = ModelOptions(
        sequences=("seen",), sequence_pooling="self", sequence_layers=layers, sequence_heads=2,
        sequence_hidden=(5,), sequence_positions=3,
    )  # fmt: skip
    return SelfAttentionPooling(8, options, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3, 0, 1, 5, 3], [18, 2, 17]])
@pytest.mark.parametrize("layers", [1, 2])
def test_pools_each_list_by_itself(lengths: list[int], layers: int) -> None:
    tower = make(layers)
    generator = torch.Generator().manual_seed(1)
    items = torch.randn(sum(lengths), 8, generator=generator).requires_grad_()
    result = tower(items, torch.tensor(lengths, dtype=torch.int64))
    rows = []
    for run in items.split(lengths) if lengths else ():
        position = [min(len(run) - 1 - place, 2) for place in range(len(run))]
        x = run + tower.positions[position]
        for layer in tower.layers:
            x = layer(x, ListBuckets(torch.tensor([len(run)])))
        x = tower.norm(x)
        rows.append((tower.score(x).softmax(0) * x).sum(0))
    expected = torch.stack(rows) if rows else torch.empty(0, 8)
    torch.testing.assert_close(result, expected)
    wanted = [items, *tower.parameters()]
    upstream = torch.randn(result.shape, generator=generator)
    slow = torch.autograd.grad((expected * upstream).sum() + sum(p.sum() * 0 for p in wanted), wanted)
    for mine, other in zip(torch.autograd.grad(result, wanted, upstream), slow, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_limits_stand_close():
    assert [_bucket_limit(length) for length in (0, 1, 2, 15, 16, 17, 18, 19, 33, 64, 65, 129)] == [
        *(0, 1, 2, 15, 16, 18, 18, 20, 36, 64, 72, 144)
    ]
    for length in range(1, 3000):
        limit = _bucket_limit(length)
        assert length <= limit == _bucket_limit(limit)
        assert limit - length <= length / 8


@given(lengths=st.lists(st.integers(0, 40), max_size=12))
def test_every_item_keeps_its_list(lengths):
    buckets = ListBuckets(torch.tensor(lengths, dtype=torch.int64))
    assert buckets.lengths.tolist() == sorted(lengths)
    assert buckets.order[buckets.place_of_list].tolist() == list(range(len(lengths)))
    assert [lengths[place] for place in buckets.order] == sorted(lengths)
    assert sum(bucket.num_lists for bucket in buckets.buckets) == len(lengths)
    names = [(number, item) for number in buckets.order.tolist() for item in range(lengths[number])]
    items = torch.tensor(names, dtype=torch.float64).view(-1, 2)
    sizes = [bucket.num_items for bucket in buckets.buckets]
    parts = items.split(sizes) if sizes else ()
    numbers = iter(buckets.order.tolist())
    for bucket, part in zip(buckets.buckets, parts, strict=True):
        assert (
            (bucket.padded(part) is part)
            == (bucket.is_item is None)
            == (bucket.num_items == bucket.num_lists * bucket.longest)
        )
        matrix = bucket.padded(part).view(bucket.num_lists, bucket.longest, 2)
        for row in range(bucket.num_lists):
            number = next(numbers)
            length = lengths[number]
            assert matrix[row, :length].tolist() == [[number, item] for item in range(length)]
            if bucket.is_item is not None:
                assert bucket.is_item[row, 0, 0].tolist() == [True] * length + [False] * (bucket.longest - length)
        assert torch.equal(bucket.cut(matrix.flatten(0, 1)), part)


def padded_reference(layer: EncoderLayer, heads: int, dim: int, hidden: int) -> nn.TransformerEncoderLayer:
    """PyTorch's layer with the same weights."""
    with torch.device("meta"):  # So that no numbers are drawn.
        reference = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=hidden, dropout=0.0, batch_first=True, norm_first=True
        )
    own = layer.state_dict()
    names = {
        "self_attn.in_proj_weight": "queries_keys_values.weight",
        "self_attn.in_proj_bias": "queries_keys_values.bias",
        "self_attn.out_proj.weight": "attended.weight",
        "self_attn.out_proj.bias": "attended.bias",
        "linear1.weight": "mlp.layers.0.weight",
        "linear1.bias": "mlp.layers.0.bias",
        "linear2.weight": "mlp_output.weight",
        "linear2.bias": "mlp_output.bias",
        "norm1.weight": "attention_norm.weight",
        "norm1.bias": "attention_norm.bias",
        "norm2.weight": "mlp_norm.weight",
        "norm2.bias": "mlp_norm.bias",
    }
    assert own.keys() == set(names.values())
    reference.load_state_dict({theirs: own[ours] for theirs, ours in names.items()}, assign=True)
    return reference


@pytest.mark.parametrize("lengths", [[1], [4, 4, 4], [17, 18, 1, 20, 19, 33, 36, 2]])
@pytest.mark.parametrize("heads", [1, 4])
def test_against_padding_and_mask(lengths: list[int], heads: int) -> None:
    dim, hidden = 8, 12
    generator = torch.Generator().manual_seed(0)
    layer = EncoderLayer(dim, heads=heads, hidden=(hidden,), generator=generator)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    reference = padded_reference(layer, heads, dim, hidden)
    buckets = ListBuckets(torch.tensor(lengths))
    ascending = sorted(lengths)
    items = torch.randn(sum(lengths), dim, generator=generator).requires_grad_()
    is_item = torch.arange(max(lengths)) < torch.tensor(ascending).view(-1, 1)
    matrix = items.new_zeros(*is_item.shape, dim).masked_scatter(is_item.unsqueeze(2), items)
    expected: Tensor = reference(matrix, src_key_padding_mask=~is_item)[is_item]
    result = layer(items, buckets)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(result.shape, generator=generator)
    (mine,) = torch.autograd.grad(result, items, upstream, retain_graph=True)
    (slow,) = torch.autograd.grad(expected, items, upstream, retain_graph=True)
    torch.testing.assert_close(mine, slow, rtol=1e-4, atol=1e-5)
    weights = (layer.queries_keys_values.weight, reference.self_attn.in_proj_weight)
    (mine,) = torch.autograd.grad(result, weights[0], upstream)
    (slow,) = torch.autograd.grad(expected, weights[1], upstream)
    torch.testing.assert_close(mine, slow, rtol=1e-4, atol=1e-4)


def test_heads_divide_the_columns() -> None:
    with pytest.raises(RecipeError, match="sequence_heads = 3 does not divide the 8 columns"):
        EncoderLayer(8, heads=3, hidden=(4,), generator=torch.Generator().manual_seed(0))
