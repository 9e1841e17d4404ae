"""windrow.comm.link_model: on described networks exactly the textbook, and what must hold on any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.link_model import ADD_SECONDS_PER_BYTE as ADD
from windrow.comm.link_model import all_reduce_rounds, predict_all_reduce, predict_all_to_all, wire_seconds
from windrow.comm.links import CollectiveCost, Links, TimeCurve

GAMMA, THETA = 5e-6, 8e-10


def uniform(size: int, **changes) -> Links:
    values = {
        "hosts": [f"host{n}" for n in range(size)],
        "latency_s": np.full((size, size), GAMMA),
        "seconds_per_byte": np.full((size, size), THETA),
        "hidden_s": np.zeros((size, size)),
    }
    return Links(**{**values, **changes})


def simulated_sums(size: int, num_bytes: float) -> list[set[int]]:
    """Whose vectors each rank's result holds, if every byte sent in a round were a whole partial sum."""
    held = [{rank} for rank in range(size)]
    for sent, _ in all_reduce_rounds(size, num_bytes):
        before = [set(ranks) for ranks in held]
        for source, target in zip(*np.nonzero(sent), strict=True):
            held[target] |= before[source]
    return held


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("num_bytes", [1, 1000, 10**7])
def test_equal_all_to_all_of_a_uniform_network(size, num_bytes):
    predicted = predict_all_to_all(uniform(size), np.full((size, size), num_bytes))
    assert predicted == pytest.approx(GAMMA + (size - 1) * THETA * num_bytes)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_all_reduce_of_a_uniform_network(size):
    """Thakur, Rabenseifner, Gropp 2005, section 4.4."""
    latency, share = math.log2(size) * GAMMA, (size - 1) / size
    long = 2 * latency + share * 10**6 * (2 * THETA + ADD)
    short = latency + math.log2(size) * 2048 * (THETA + ADD)
    assert predict_all_reduce(uniform(size), 10**6) == pytest.approx(long)
    assert predict_all_reduce(uniform(size), 2048) == pytest.approx(short)


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_ranks_beyond_a_power_of_two_hand_their_vector_over_and_back(size):
    power = 2 ** int(math.log2(size))
    beyond = predict_all_reduce(uniform(size), 10**6) - predict_all_reduce(uniform(power), 10**6)
    assert beyond == pytest.approx(2 * (GAMMA + 10**6 * THETA) + 10**6 * ADD)


@given(st.integers(1, 40), st.sampled_from([8, 2048, 2049, 10**6]))
def test_every_rank_ends_with_the_vectors_of_all(size, num_bytes):
    assert simulated_sums(size, num_bytes) == [set(range(size))] * size


@given(st.integers(2, 40), st.sampled_from([8, 10**6]))
def test_in_a_round_every_rank_has_one_partner_at_most(size, num_bytes):
    for sent, _ in all_reduce_rounds(size, num_bytes):
        busy = sent > 0
        assert busy.any()
        assert busy.sum(axis=0).max() <= 1
        assert busy.sum(axis=1).max() <= 1


def test_one_slow_link_dominates():
    theta = np.full((4, 4), THETA)
    theta[1, 2] = 100 * THETA
    slow = uniform(4, seconds_per_byte=theta)
    num_bytes = np.full((4, 4), 10**6)
    assert predict_all_to_all(slow, num_bytes) == pytest.approx(GAMMA + 100 * THETA * 10**6)
    num_bytes[1, 2] = 0
    assert predict_all_to_all(slow, num_bytes) == pytest.approx(GAMMA + 3 * THETA * 10**6)


def test_a_slow_latency_counts_where_there_is_a_message():
    latency = np.full((3, 3), GAMMA)
    latency[0, 2] = 1.0
    links = uniform(3, latency_s=latency)
    assert predict_all_to_all(links, np.ones((3, 3))) == pytest.approx(1 + 2 * THETA)
    assert predict_all_to_all(links, [[0, 1, 0], [1, 0, 1], [1, 1, 0]]) < 2 * GAMMA


@given(st.lists(st.lists(st.integers(0, 10**8), min_size=4, max_size=4), min_size=4, max_size=4))
def test_ragged_all_to_all_waits_for_the_busiest_port(num_bytes):
    sent = np.array(num_bytes)
    np.fill_diagonal(sent, 0)
    busiest = max(sent.sum(axis=0).max(), sent.sum(axis=1).max())
    expected = GAMMA + THETA * busiest if busiest else 0
    assert predict_all_to_all(uniform(4), num_bytes) == pytest.approx(expected)


@given(
    st.lists(st.lists(st.integers(0, 10**8), min_size=4, max_size=4), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_more_bytes_never_take_less(num_bytes, source, target):
    links = uniform(
        4,
        hosts=["a", "a", "b", "b"],
        shared_seconds_per_byte=THETA / 3,
        all_to_all=CollectiveCost(latency_factor=2, stretch=1.1, hidden_s=1e-4),
    )
    more = np.array(num_bytes)
    more[source, target] += 10**6
    assert predict_all_to_all(links, more) >= predict_all_to_all(links, num_bytes)


def test_nothing_takes_no_time():
    links = uniform(4)
    assert predict_all_to_all(links, np.zeros((4, 4))) == 0
    assert predict_all_to_all(links, np.diag([10.0] * 4)) == 0
    assert predict_all_reduce(links, 0) == 0
    assert predict_all_to_all(uniform(1), [[5]]) == 0
    assert predict_all_reduce(uniform(1), 10**6) == 0


def test_ranks_of_one_host_share_its_card():
    links = uniform(4, hosts=["a", "a", "b", "b"])
    num_bytes = 1000.0 * (1 - np.eye(4))
    # Out of each host go 2 x 2 messages; inside, each rank sends one.
    assert wire_seconds(links, num_bytes) == pytest.approx(4 * 1000 * THETA)
    inside_only = np.kron(np.eye(2), np.full((2, 2), 1000)) * (1 - np.eye(4))
    assert wire_seconds(links, inside_only) == pytest.approx(1000 * THETA)


def test_what_all_share_carries_one_byte_after_another():
    links = uniform(4, shared_seconds_per_byte=THETA)
    assert wire_seconds(links, 1000.0 * (1 - np.eye(4))) == pytest.approx(12 * 1000 * THETA)
    one = np.zeros((4, 4))
    one[0, 1] = 1000
    assert wire_seconds(links, one) == pytest.approx(1000 * THETA)


def test_a_message_alone_hides_in_its_latency_what_it_can():
    free = CollectiveCost(latency_factor=0, stretch=0)
    links = uniform(2, hidden_s=np.full((2, 2), 1e-5), all_to_all=free)
    assert predict_all_to_all(links, [[0, 1000], [0, 0]]) == pytest.approx(GAMMA)
    assert predict_all_to_all(links, [[0, 10**6], [0, 0]]) == pytest.approx(GAMMA + THETA * 10**6 - 1e-5)


def test_costs_of_collectives_are_applied():
    links = uniform(2, all_to_all=CollectiveCost(latency_factor=3, stretch=1.5, hidden_s=1e-5))
    equal = np.full((2, 2), 10**6)
    assert predict_all_to_all(links, equal) == pytest.approx(3 * GAMMA + 1.5 * THETA * 10**6 - 1e-5)
    no_less_than_alone = uniform(2, all_to_all=CollectiveCost(stretch=0.0))
    assert predict_all_to_all(no_less_than_alone, equal) == pytest.approx(GAMMA + THETA * 10**6)


def test_sums_take_what_was_measured_for_their_length():
    short = TimeCurve(latency_s=1.0, seconds_per_unit=1e-3, hidden_s=0.0)
    long = TimeCurve(latency_s=5.0, seconds_per_unit=1e-6, hidden_s=2e-3)
    links = uniform(2, all_reduce=(short, long))
    assert predict_all_reduce(links, 2048) == pytest.approx(1 + 2.048)
    assert predict_all_reduce(links, 10**6) == pytest.approx(5 + 1 - 2e-3)
    assert predict_all_reduce(links, 0) == 0


@pytest.mark.parametrize("num_bytes", [np.ones((3, 3)), np.ones(4), -np.ones((4, 4)), np.full((4, 4), np.nan)])
def test_wrong_byte_matrices_and_lengths_are_refused(num_bytes):
    with pytest.raises(ValueError, match="num_bytes"):
        predict_all_to_all(uniform(4), num_bytes)
    with pytest.raises(ValueError, match="num_bytes = -1"):
        predict_all_reduce(uniform(2), -1)
