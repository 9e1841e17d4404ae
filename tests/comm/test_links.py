"""windrow.comm.links: what is accepted, the JSON that keeps it, and the few words that describe a network."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.link_model import predict_all_to_all
from windrow.comm.links import (
    CollectiveCost,
    Links,
    NetworkDescription,
    TimeCurve,
    described_links,
    links_from_json,
    links_to_json,
    seconds_per_byte,
)

SECONDS = st.floats(min_value=0, max_value=1e3, allow_nan=False)


@st.composite
def any_links(draw):
    size = draw(st.integers(1, 4))
    matrices = st.lists(st.lists(SECONDS, min_size=size, max_size=size), min_size=size, max_size=size)
    costs = st.builds(CollectiveCost, latency_factor=SECONDS, stretch=SECONDS, hidden_s=SECONDS)
    curves = st.builds(TimeCurve, latency_s=SECONDS, seconds_per_unit=SECONDS, hidden_s=SECONDS)
    return Links(
        hosts=draw(st.lists(st.text(), min_size=size, max_size=size)),
        latency_s=draw(matrices),
        seconds_per_byte=draw(matrices),
        hidden_s=draw(matrices),
        shared_seconds_per_byte=draw(SECONDS),
        all_to_all=draw(costs),
        all_reduce=draw(st.none() | st.tuples(curves, curves)),
    )


def two_ranks(**changes) -> Links:
    values = {name: np.ones((2, 2)) for name in ("latency_s", "seconds_per_byte", "hidden_s")}
    return Links(**{"hosts": ["a", "b"], **values, **changes})


@given(any_links())
def test_json_brings_back_every_number(links):
    again = links_from_json(links_to_json(links), source="here")
    for field in dataclasses.fields(Links):
        before, after = getattr(links, field.name), getattr(again, field.name)
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after


def test_matrices_are_read_only_and_have_nothing_on_the_diagonal():
    links = two_ranks()
    assert links.size == 2
    assert links.latency_s.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="read-only"):
        links.latency_s[0, 1] = 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": []}, "hosts"),
        ({"latency_s": np.ones((3, 3))}, r"latency_s has shape \[3, 3\], expected \[2, 2\]"),
        ({"latency_s": np.ones((2, 3))}, r"latency_s\n.*has shape \[2, 3\]"),
        ({"seconds_per_byte": -np.ones((2, 2))}, r"seconds_per_byte\n.*holds entries that are negative"),
        ({"hidden_s": np.full((2, 2), np.nan)}, r"hidden_s\n.*holds entries that are negative or not finite"),
        ({"shared_seconds_per_byte": -1.0}, "shared_seconds_per_byte"),
        ({"shared_seconds_per_byte": float("inf")}, "shared_seconds_per_byte"),
    ],
)
def test_impossible_links_and_costs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        two_ranks(**changes)
    for field in ("latency_factor", "stretch", "hidden_s"):
        with pytest.raises(ValueError, match=rf"{field} = -1\.0"):
            CollectiveCost(**{field: -1.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(format_version=99), "format_version Input should be 2"),
        (lambda it: it.pop("hidden_s"), "hidden_s Field required"),
        (lambda it: it.update(surprise=1), "surprise Unexpected"),
        (lambda it: it.update(hosts="ab"), "hosts Input should be a valid"),
        (lambda it: it.update(hosts=["a", 5]), r"hosts\.1 Input should be a valid string"),
        (lambda it: it.update(latency_s=[[1]]), "latency_s has shape"),
        (lambda it: it.update(latency_s="x"), "could not convert"),
        (lambda it: it.update(latency_s=[[1], [1, 2]]), "shape"),
        (lambda it: it.update(shared_seconds_per_byte="x"), "shared_seconds_per_byte Input should be a valid number"),
        (lambda it: it["all_to_all"].update(stretch=-1), "all_to_all.stretch Input should be greater"),
        (lambda it: it["all_to_all"].update(other=1), "other"),
        (lambda it: it.update(all_to_all=[1]), "all_to_all"),
    ],
)
def test_damaged_json_is_refused_with_source_and_cure(change, message):
    damaged = json.loads(links_to_json(two_ranks()))
    change(damaged)
    with pytest.raises(StoreError, match=message) as caught:
        links_from_json(json.dumps(damaged), source="links.json")
    assert str(caught.value).startswith("links.json: ")
    assert "windrow network --measure" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(StoreError, match=r"Invalid JSON|should be an object"):
        links_from_json(text, source="links.json")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("1gbit", 8e-9), ("100 Gbit", 8e-11), ("2.5gbit", 3.2e-9), ("800mbit", 1e-8), ("8kbit", 1e-3), ("8bit", 1.0),
     ("1tbit", 8e-12)],
)  # fmt: skip
def test_rates(rate, expected):
    assert seconds_per_byte(rate) == pytest.approx(expected)


@pytest.mark.parametrize("rate", ["", "fast", "10", "-1gbit", "0gbit", "1gbyte", "gbit", "1gbits"])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(RecipeError, match="100gbit"):
        seconds_per_byte(rate)


def test_links_of_the_first_ranks():
    links = described_links(NetworkDescription(nodes=2, ranks_per_node=2, rate="1gbit", latency_us=100.0))
    first = links.of_first(2)
    assert first.hosts == links.hosts[:2]
    np.testing.assert_array_equal(first.seconds_per_byte, links.seconds_per_byte[:2, :2])
    assert links.of_first(4) is links


def test_uniform_network():
    links = described_links(NetworkDescription(nodes=8, rate="100gbit", latency_us=5))
    others = ~np.eye(8, dtype=bool)
    assert links.hosts == tuple(f"node{n}" for n in range(8))
    np.testing.assert_allclose(links.latency_s[others], 5e-6)
    np.testing.assert_allclose(links.seconds_per_byte[others], 8e-11)
    assert not links.hidden_s.any()
    assert links.all_to_all == CollectiveCost()
    assert links.all_reduce is None
    assert predict_all_to_all(links, np.full((8, 8), 10**6)) == pytest.approx(5e-6 + 7 * 8e-11 * 10**6)


def test_ranks_of_a_machine_share_its_card():
    inside = {"rate_inside": "10gbit", "latency_inside_us": 1}
    links = described_links(NetworkDescription(nodes=2, ranks_per_node=2, rate="1gbit", **inside))
    assert links.hosts == ("node0", "node0", "node1", "node1")
    assert links.seconds_per_byte[0, 1] == pytest.approx(8e-10)
    assert links.latency_s[0, 1] == pytest.approx(1e-6)
    assert links.seconds_per_byte[0, 2] == pytest.approx(8e-9)
    assert predict_all_to_all(links, np.full((4, 4), 1000)) == pytest.approx(20e-6 + 4 * 1000 * 8e-9)


def test_a_pair_is_as_fast_as_the_slower_card_and_framing_takes_its_share():
    described = NetworkDescription(nodes=3, rate="10gbit", node_rates={"1": "1gbit"}, wire_share=0.8)
    links = described_links(described)
    assert links.seconds_per_byte[0, 1] == links.seconds_per_byte[1, 2] == pytest.approx(1e-8)
    assert links.seconds_per_byte[0, 2] == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 5000}, "4096"),
        ({"rate": "quick"}, "rate 'quick'"),
        ({"rate_inside": "quick"}, "rate 'quick'"),
        ({"node_rates": {"0": "quick"}}, "rate 'quick'"),
        ({"node_rates": {"2": "1gbit"}}, "node_rates names machine '2'"),
        ({"node_rates": {"first": "1gbit"}}, "from 0 to 1"),
    ],
)
def test_impossible_networks_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        NetworkDescription(**{"nodes": 2, **changes})
