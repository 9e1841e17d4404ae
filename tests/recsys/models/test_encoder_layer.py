"""The encoder layer against PyTorch's, which pads and masks."""

import pytest
import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.models.self_attention import EncoderLayer, ListBuckets


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


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_has_gradients_of_zero(lengths: list[int]) -> None:
    layer = EncoderLayer(8, heads=2, hidden=(4,), generator=torch.Generator().manual_seed(0))
    result = layer(torch.empty(0, 8), ListBuckets(torch.tensor(lengths, dtype=torch.int64)))
    assert result.shape == (0, 8)
    result.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_heads_divide_the_columns() -> None:
    with pytest.raises(RecipeError, match="sequence_heads = 3 does not divide the 8 columns"):
        EncoderLayer(8, heads=3, hidden=(4,), generator=torch.Generator().manual_seed(0))
