"""windrow.partition.book: what a manifest says of the order, and when a run refuses it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.partition.book import (
    ORDER_KEY,
    VertexOrder,
    check_vertex_order,
    order_from_metadata,
    order_to_metadata,
)

STORE = Path("stores/mine")
ORDER = VertexOrder(fanouts=(15, 10, 5), batch_size=1024, seed_order="global")
ORDERS = st.builds(
    VertexOrder,
    fanouts=st.lists(st.integers(-1, 50), max_size=4).map(tuple),
    batch_size=st.integers(1, 10**6),
    seed_order=st.sampled_from(["global", "local"]),
)


@given(st.none() | ORDERS)
def test_a_manifest_keeps_it(order):
    metadata = json.loads(json.dumps({ORDER_KEY: order_to_metadata(order)}))
    assert order_from_metadata(metadata, store=STORE) == order


def test_a_manifest_by_example():
    assert order_to_metadata(ORDER) == {
        "by": "vip",
        "fanouts": [15, 10, 5],
        "batch_size": 1024,
        "seed_order": "global",
    }
    assert order_to_metadata(None) == {"by": "original"}


def test_an_older_store_has_the_users_order():
    assert order_from_metadata({"task": "binary"}, store=STORE) is None


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "vip",
        {},
        {"by": "vip"},
        {"by": "degree", "fanouts": [1], "batch_size": 1, "seed_order": "global"},
        {"by": "vip", "fanouts": 5, "batch_size": 1, "seed_order": "global"},
        {"by": "vip", "fanouts": ["5"], "batch_size": 1, "seed_order": "global"},
        {"by": "vip", "fanouts": [5], "batch_size": "1", "seed_order": "global"},
        {"by": "vip", "fanouts": [5], "batch_size": 1, "seed_order": "global", "more": 1},
    ],
)
def test_an_entry_that_is_none_is_refused(entry):
    with pytest.raises(StoreError, match=r"stores/mine names an order.*windrow partition"):
        order_from_metadata({ORDER_KEY: entry}, store=STORE)


def check(found, **changes):
    usual = {"wanted": "vip", "fanouts": (15, 10, 5), "batch_size": 1024, "gpu_share": 0.5}
    check_vertex_order(found, store=STORE, **{**usual, **changes})


def test_the_same_minibatches_are_accepted_however_seeds_are_shuffled():
    check(ORDER)
    check(ORDER, fanouts=[15, 10, 5])
    check(VertexOrder(fanouts=(15, 10, 5), batch_size=1024, seed_order="local"))


@pytest.mark.parametrize(
    ("found", "changes", "words"),
    [
        (ORDER, {"fanouts": (15, 10)}, r"fanouts = \[15, 10, 5\].*fanouts = \[15, 10\].*--overwrite"),
        (ORDER, {"fanouts": (15, 10, 6)}, r"\[15, 10, 6\]"),
        (ORDER, {"batch_size": 512}, r"batch_size = 1024.*batch_size = 512.*--overwrite"),
        (None, {}, r"stores/mine is in the user's order.*gpu_share = 0.5.*--overwrite"),
    ],
)
def test_other_minibatches_are_refused_where_a_share_is_kept_near(found, changes, words):
    with pytest.raises(StoreError, match=words):
        check(found, **changes)
    for gpu_share in (0, 0.0, 1, 1.0):
        check(found, **changes, gpu_share=gpu_share)
    check(found, **changes, wanted="original")
