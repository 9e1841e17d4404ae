import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.interactions import item_lists_from_pairs
from windrow.recsys.ranking_metrics import find_hits, mrr_at_k, ndcg_at_k, recall_at_k

NUM_ITEMS = 15


@given(
    st.lists(st.sets(st.integers(0, NUM_ITEMS - 1), min_size=1), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_metrics_equal_their_definitions(relevant, k, seed):
    generator = np.random.default_rng(seed)
    users = generator.permutation(len(relevant))
    recommended = np.stack([generator.permutation(NUM_ITEMS)[:k] for _ in users])
    pairs = np.array([(user, item) for user, items in enumerate(relevant) for item in items])
    hits = find_hits(recommended, users, item_lists_from_pairs(*pairs.T, len(relevant)))
    counts = np.array([len(relevant[user]) for user in users])
    recall, ndcg, reciprocal = recall_at_k(hits, counts), ndcg_at_k(hits, counts), mrr_at_k(hits)
    for row, user in enumerate(users):
        found = [item in relevant[user] for item in recommended[row].tolist()]
        assert hits[row].tolist() == found
        assert recall[row] == sum(found) / len(relevant[user])
        assert reciprocal[row] == (1 / (found.index(True) + 1) if True in found else 0)
        gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(found) if hit)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(relevant[user]))))
        assert ndcg[row] == pytest.approx(gain / best)


def test_nothing_relevant_nothing_hit():
    nothing = item_lists_from_pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 3)
    assert not find_hits(np.array([[0, 1]]), np.array([2]), nothing).any()
    assert find_hits(np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64), nothing).shape == (0, 2)
