"""The loops of one hop; `test_vip.py` compares what they make together with the formula."""

import math

import numpy as np

from windrow.caching.ranking_kernels import begin_hop, finish_hop, pass_hop

FANOUTS = np.array([2, -1])


def test_begin_hop_counts_every_draw_from_then_on():
    states = np.zeros((3, 5))
    degrees = np.array([0, 2, 4])
    begin_hop(0, 3, FANOUTS, 1, degrees, states)
    assert states[:, 3].tolist() == [1, 1, 0.5]
    fanouts = np.array([2, 1])
    begin_hop(0, 3, fanouts, 2, degrees, states)
    assert states[:, 3:].tolist() == [[1, 1], [1, 0.5], [1 - 0.5 * 0.75, 0.25]]


def test_pass_hop_and_finish_hop_on_one_edge():
    # 0 lists 1, 1 lists nothing; 0 is a seed of every second minibatch.
    indptr, indices = np.array([0, 0, 1]), np.array([0], np.int32)
    states = np.array([[0.5, 0, 0, 1, 0], [0, 0, 0, 1, 0]])
    missed, redundant, sent = np.empty(2), np.empty(2), np.zeros((2, 2))
    single = np.array([True])
    degrees = np.array([1, 0])
    pass_hop(0, 2, FANOUTS, 1, -200.0, degrees, indptr, indices, single, states, sent, missed, redundant)
    assert missed.tolist() == [0, math.log1p(-0.5)]
    assert redundant.tolist() == missed.tolist()
    hops = np.array([[0.5, 0], [0, 0], [0, 0]])
    finish_hop(0, 2, FANOUTS, 1, -200.0, missed, redundant, hops, states, sent)
    assert hops[1].tolist() == [0.5, 0.5]
    assert sent[:, 0].tolist() == [math.log1p(-0.5), 0]
    assert states[:, 1].tolist() == missed.tolist()


def test_what_is_certain_stays_finite():
    indptr, indices = np.array([0, 0, 1]), np.array([0], np.int32)
    states = np.array([[1, 0, 0, 1, 0], [0, 0, 0, 1, 0]], np.float64)
    missed, redundant, sent = np.empty(2), np.empty(2), np.zeros((2, 2))
    pass_hop(
        0, 2, FANOUTS, 1, -200.0, np.array([1, 0]), indptr, indices, None, states, sent, missed, redundant
    )
    assert missed.tolist() == [0, -200]
    hops = np.array([[1.0, 0], [0, 0], [0, 0]])
    finish_hop(0, 2, FANOUTS, 1, -200.0, missed, redundant, hops, states, sent)
    assert hops[1].tolist() == [1, 1]
