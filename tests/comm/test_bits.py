"""windrow.comm.bits: the assignment against an exact solver, and what must hold for any."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from windrow.comm.bits import adaptive_bits, error_weights, group_messages, random_bits, spread_bits, uniform_bits
from windrow.comm.links import Links

WIDTHS = (2, 4, 8)


def row_bytes(width, widths=WIDTHS):
    return {bits: 4 + -(-width * bits // 8) for bits in widths}


def random_links(rng, size, *, hidden=0.0):
    theta = 10 ** rng.uniform(-10, -8, (size, size))
    gamma = 10 ** rng.uniform(-6, -4, (size, size))
    return Links(
        hosts=[f"host{n}" for n in range(size)],
        latency_s=gamma,
        seconds_per_byte=theta,
        hidden_s=np.full((size, size), hidden),
    )


def equal_links(size):
    ones = np.ones((size, size))
    return Links(hosts=["host"] * size, latency_s=1e-5 * ones, seconds_per_byte=1e-9 * ones, hidden_s=0 * ones)


def groups_of(weights, group_size):
    """Groups of all channels from error weights of all messages, ``weights[sender][receiver]``."""
    return [[group_messages(np.asarray(channel, np.float64), group_size)[1] for channel in row] for row in weights]


def random_weights(rng, size, most):
    return [
        [rng.lognormal(0, rng.uniform(0.1, 3), 0 if p == q else rng.integers(most + 1)) for q in range(size)]
        for p in range(size)
    ]


class Exact:
    """The problem as a mixed-integer program, and its objective written down slowly."""

    def __init__(self, groups, links, bytes_of, share):
        self.groups, self.links, self.bytes_of, self.share = groups, links, bytes_of, share
        self.widths = sorted(bytes_of)
        self.pairs = [(p, q) for p, q in itertools.permutations(range(len(groups)), 2) if len(groups[p][q].sizes)]
        ends = [uniform_bits(groups, bits) for bits in (self.widths[0], self.widths[-1])]
        (self.most_error, self.least_error), (self.least_s, self.most_s) = (
            [measure(bits) for bits in ends] for measure in (self.error, self.seconds)
        )

    def error(self, bits):
        return sum(
            weight / (2.0**width - 1) ** 2
            for p, q in self.pairs
            for weight, width in zip(self.groups[p][q].weights, bits[p][q].tolist(), strict=True)
        )

    def seconds_of_rounds(self, bits):
        rounds = [0.0] * (len(self.groups) - 1)
        for p, q in self.pairs:
            sizes = self.groups[p][q].sizes.tolist()
            sent = sum(n * self.bytes_of[b] for n, b in zip(sizes, bits[p][q].tolist(), strict=True))
            further = max(0, self.links.seconds_per_byte[p, q] * sent - self.links.hidden_s[p, q])
            distance = (q - p) % len(self.groups)
            rounds[distance - 1] = max(rounds[distance - 1], self.links.latency_s[p, q] + further)
        return rounds

    def seconds(self, bits):
        return sum(self.seconds_of_rounds(bits))

    def objective(self, bits):
        error_span, time_span = self.most_error - self.least_error, self.most_s - self.least_s
        total = 0.0
        if error_span > 0:
            total += self.share * (self.error(bits) - self.least_error) / error_span
        if time_span > 0:
            total += (1 - self.share) * (self.seconds(bits) - self.least_s) / time_span
        return total

    def solve(self):
        """The least objective, by HiGHS.

        Its tolerances are absolute: so seconds are counted from the least of each round, in units of the whole span.
        """
        size, k = len(self.groups), len(self.widths)
        places = [(p, q, g) for p, q in self.pairs for g in range(len(self.groups[p][q].sizes))]
        chosen = len(places) * k
        scale = 1 / (self.most_s - self.least_s)
        least = self.seconds_of_rounds(uniform_bits(self.groups, self.widths[0]))
        costs = np.zeros(chosen + size - 1)
        costs[chosen:] = 1 - self.share
        rows, low, high = [], [], []
        for n, (p, q, g) in enumerate(places):
            for i, width in enumerate(self.widths):
                error = self.groups[p][q].weights[g] / (2.0**width - 1) ** 2
                costs[n * k + i] = self.share * error / (self.most_error - self.least_error)
            one_width = np.zeros(len(costs))
            one_width[n * k : (n + 1) * k] = 1
            rows.append(one_width)
            low.append(1)
            high.append(1)
        for p, q in self.pairs:
            place = (q - p) % size - 1
            deadline = np.zeros(len(costs))
            deadline[chosen + place] = 1
            for n in (n for n, found in enumerate(places) if found[:2] == (p, q)):
                sent = self.groups[p][q].sizes[places[n][2]] * np.array([self.bytes_of[width] for width in self.widths])
                deadline[n * k : (n + 1) * k] = -scale * self.links.seconds_per_byte[p, q] * sent
            rows.append(deadline)
            low.append(scale * (self.links.latency_s[p, q] - self.links.hidden_s[p, q] - least[place]))
            high.append(np.inf)
        found = milp(
            costs,
            integrality=np.arange(len(costs)) < chosen,
            constraints=LinearConstraint(np.array(rows), low, high),
            options={"mip_rel_gap": 1e-6},
        )
        assert found.success, found.message
        return found.fun - self.share * self.least_error / (self.most_error - self.least_error)


def instance(number):
    """A small problem, or one without a choice; heterogeneous links, groups of 1 to 20 messages."""
    rng = np.random.default_rng(number)
    size, share = 2 + number % 3, (0.1, 0.5, 0.9)[number // 3 % 3]
    group_size = (1, 3, 5, 10, 20)[number // 9 % 5]
    weights = random_weights(rng, size, 60 if group_size > 1 else 12)
    links = random_links(rng, size, hidden=(0, 1e-7)[number % 2])
    widths = WIDTHS if number % 4 else (1, 2, 4, 8)
    return groups_of(weights, group_size), links, row_bytes(int(rng.integers(1, 65)), widths), share


def test_the_objective_is_that_of_an_exact_solver():
    """Whose tolerance is 1e-6 of terms that are from 0 to 1."""
    num_solved = 0
    for number in range(270):
        groups, links, bytes_of, share = instance(number)
        exact = Exact(groups, links, bytes_of, share)
        if exact.most_s > exact.least_s and exact.most_error > exact.least_error:
            found = exact.objective(adaptive_bits(groups, links, bytes_of, error_share=share))
            assert found == pytest.approx(exact.solve(), abs=5e-6), number
            num_solved += 1
    assert num_solved > 200


@pytest.mark.parametrize("most_states", [0, 3000])
def test_few_states_come_near_the_optimum_of_many(monkeypatch, most_states):
    rng = np.random.default_rng(3)
    groups = groups_of([[rng.lognormal(0, 2, 3000 * (p != q)) for q in range(4)] for p in range(4)], 20)
    links, bytes_of = random_links(rng, 4), row_bytes(256)
    exact = Exact(groups, links, bytes_of, 0.5)
    best = exact.objective(adaptive_bits(groups, links, bytes_of, error_share=0.5))
    monkeypatch.setattr("windrow.comm.bits.MOST_STATES", most_states)
    assert exact.objective(adaptive_bits(groups, links, bytes_of, error_share=0.5)) <= 1.001 * best


def test_a_share_of_0_or_1_takes_all_narrow_or_all_wide():
    for number in range(20):
        groups, links, bytes_of, _ = instance(number)
        for share, bits in ((0.0, min(bytes_of)), (1.0, 8)):
            assert_equal_bits(adaptive_bits(groups, links, bytes_of, error_share=share), uniform_bits(groups, bits))


def assert_equal_bits(one, other):
    for row, other_row in zip(one, other, strict=True):
        for channel, other_channel in zip(row, other_row, strict=True):
            assert channel.dtype == other_channel.dtype == np.uint8
            np.testing.assert_array_equal(channel, other_channel)


def test_a_heavier_group_never_gets_fewer_bits():
    """All but the last group of a channel are equally large."""
    for number in range(40):
        groups, links, bytes_of, share = instance(number)
        for channel in itertools.chain(*adaptive_bits(groups, links, bytes_of, error_share=share)):
            assert (np.diff(channel[:-1].astype(int)) <= 0).all()


def test_a_channel_that_waits_for_a_slower_one_gets_the_widest_rows_for_nothing():
    links = equal_links(2)
    groups = groups_of([[[], [1.0] * 1000], [[1.0] * 10, []]], 10)
    bits = adaptive_bits(groups, links, row_bytes(64), error_share=0.1)
    assert set(bits[1][0]) == {8}
    assert bits[0][1].mean() < 8


def test_where_nothing_can_be_gained_rows_are_narrow_and_where_nothing_is_lost_wide():
    links, free = equal_links(3), Links(hosts=["host"] * 3, **dict.fromkeys(MATRICES, np.zeros((3, 3))))
    for weight, on, bits in ((0.0, links, 2), (1.0, free, 8)):
        groups = groups_of([[[weight] * (5 * (p != q)) for q in range(3)] for p in range(3)], 2)
        assert_equal_bits(adaptive_bits(groups, on, row_bytes(16), error_share=0.5), uniform_bits(groups, bits))
    # Rows of one number take a byte at any width.
    groups = groups_of([[[], [1.0]], [[], []]], 2)
    assert_equal_bits(adaptive_bits(groups, equal_links(2), row_bytes(1), error_share=0.5), uniform_bits(groups, 8))


def test_every_rank_solves_for_itself_from_what_all_gathered(spmd):
    def body(world):
        rng = np.random.default_rng(world.rank)
        weights = [rng.lognormal(0, 2, 500 * (peer != world.rank)) for peer in range(world.size)]
        groups = world.all_gather_object([group_messages(one, 20)[1] for one in weights], stage="groups")
        bits = adaptive_bits(groups, equal_links(world.size), row_bytes(64), error_share=0.5)
        return [[channel.tolist() for channel in row] for row in bits]

    first, *others = spmd(body)
    assert others == [first] * len(others)


MATRICES = ("latency_s", "seconds_per_byte", "hidden_s")


@pytest.mark.parametrize("weights", [[[[]]], [[[1.0, 2.0]]], [[[], []], [[], []]], [[[], [1.0]], [[], []]]])
@pytest.mark.parametrize("widths", [(4,), WIDTHS])
def test_one_rank_empty_channels_and_one_width(weights, widths):
    groups = groups_of(weights, 2)
    bits = adaptive_bits(groups, equal_links(len(weights)), row_bytes(16, widths), error_share=0.5)
    for p, q in itertools.product(range(len(weights)), repeat=2):
        assert len(bits[p][q]) == len(groups[p][q].sizes)
        assert set(bits[p][q].tolist()) <= set(widths)


def test_random_widths_depend_on_key_channel_and_group_alone():
    few, many = (groups_of([[[1.0] * (n * (p != q)) for q in range(3)] for p in range(3)], 1) for n in (50, 3000))
    bits = random_bits(many, WIDTHS, 7)
    for p, q in itertools.permutations(range(3), 2):
        np.testing.assert_array_equal(random_bits(few, WIDTHS, 7)[p][q], bits[p][q][:50])
        assert np.bincount(bits[p][q])[list(WIDTHS)] == pytest.approx(1000, rel=0.15)
    drawn = [bits[p][q].tolist() for p, q in itertools.permutations(range(3), 2)] + [
        random_bits(many, WIDTHS, 8)[0][1].tolist()
    ]
    assert len({tuple(one) for one in drawn}) == len(drawn)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e9]), max_size=30), st.integers(1, 8))
def test_groups_hold_the_weights_of_their_messages(weights, group_size):
    weights = np.array(weights, np.float64)
    order, groups = group_messages(weights, group_size)
    assert order.tolist() == sorted(range(len(weights)), key=lambda message: -weights[message])
    parts = [order[start : start + group_size] for start in range(0, len(weights), group_size)]
    assert groups.sizes.tolist() == [len(part) for part in parts]
    assert groups.weights.tolist() == pytest.approx([weights[part].sum() for part in parts])
    bits = np.arange(len(parts), dtype=np.uint8)
    spread = spread_bits(order, groups.sizes, bits)
    assert spread.dtype == np.uint8
    assert all((spread[part] == number).all() for number, part in enumerate(parts))


@pytest.mark.parametrize("convolution", [False, True])
def test_error_weights_are_the_mean_squared_error_of_the_sums(convolution):
    """Rows rounded at random, their error aggregated: beside the formula, which holds for uniform fractions."""
    rng = np.random.default_rng(5)
    num_sources, num_destinations, width, bits = 6, 9, 40, 4
    degrees = rng.integers(0, 4, num_destinations)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, num_sources, indptr[-1])
    source_degrees = rng.integers(1, 5, num_sources) if convolution else None
    matrix = np.zeros((num_destinations, num_sources))
    for destination in range(num_destinations):
        for source in indices[indptr[destination] : indptr[destination + 1]]:
            degree = degrees[destination]
            coefficient = (degree * source_degrees[source]) ** -0.5 if convolution else 1 / degree
            # Edges that stand twice are two messages' worth here, and one in the sum of squares: add in quadrature.
            matrix[destination, source] = np.hypot(matrix[destination, source], coefficient)
    rows = rng.uniform(-3, 5, (num_sources, width))
    ranges = np.ptp(rows, axis=1)
    weights = error_weights(np.square(matrix).sum(axis=0), ranges, width)

    scaled = (rows - rows.min(axis=1, keepdims=True)) / ranges[:, None] * (2**bits - 1)
    repeats = 2000
    rounded = np.floor(scaled + rng.random((repeats, *rows.shape)))
    errors = (rounded - scaled) * ranges[:, None] / (2**bits - 1)
    squared = np.square(matrix[:, :, None] * errors[:, None]).sum(axis=(1, 3)).mean(axis=0)
    assert weights.sum() / (2**bits - 1) ** 2 == pytest.approx(squared.sum(), rel=0.1)
    assert (weights == 0).tolist() == (matrix == 0).all(axis=0).tolist()
