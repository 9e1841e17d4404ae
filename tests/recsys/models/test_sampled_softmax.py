import pytest
import torch

from windrow.recsys.models.retrieval import corrected_scores, sampled_softmax_loss


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


@pytest.mark.parametrize("corrected", [False, True])
def test_scores_are_dot_products_less_what_is_drawn_often(corrected):
    queries, items, ids = random(3, 4), random(5, 4, seed=1), torch.tensor([2, 0, 1, 2, 2])
    log_probabilities = torch.tensor([-1.0, -2.0, -4.0]) if corrected else None
    positive, negative = corrected_scores(
        queries, items, ids, temperature=0.5, log_probabilities=log_probabilities
    )
    correction = log_probabilities[ids] if corrected else torch.zeros(5)
    products = (2 * queries @ items.T - correction).tolist()
    for row, expected in enumerate(products):
        assert positive[row].item() == pytest.approx(expected[row], rel=1e-5)
        assert negative[row].tolist() == pytest.approx(expected[3:], rel=1e-5)


def test_the_loss_is_the_softmax_over_what_is_not_taken():
    positive, negative = random(4), random(4, 6, seed=1)
    taken = torch.rand(4, 6, generator=torch.Generator().manual_seed(2)) < 0.4
    taken[2] = True
    loss = sampled_softmax_loss(positive, negative, taken)
    expected = 0.0
    for row in range(4):
        scores = torch.cat([positive[row : row + 1], negative[row][~taken[row]]]).detach()
        expected += float(scores.logsumexp(0) - scores[0])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert not negative.grad[taken].any()
    assert negative.grad[~taken].gt(0).all()
    assert positive.grad[2] == 0


def test_no_samples_cost_nothing_and_have_gradients():
    queries, items = random(0, 4), random(3, 4)
    scores = corrected_scores(queries, items, torch.arange(3), temperature=1.0, log_probabilities=None)
    loss = sampled_softmax_loss(*scores, torch.zeros(0, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert not items.grad.any()
