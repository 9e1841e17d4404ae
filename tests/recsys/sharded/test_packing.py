"""Messages to owners, against sorting ids out bag by bag."""

from itertools import pairwise

import numpy as np
import pytest

from windrow.partition.tables.plan import Plan, Shard
from windrow.recsys import EmbeddingBagConfig
from windrow.recsys.sharded.layout import OwnerLayout, Request, make_layout
from windrow.recsys.sharded.packing import ONE_EACH, Message, MessageFormat, header_length, pack, read_samples
from windrow.recsys.sharded.packing_kernels import place_requests

SIZE = 3


@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts(id_type, weighted):
    form = MessageFormat(id_type, weighted=weighted, with_lengths=True)
    requests = [Request(feature, (0, 9), whole=feature != 2) for feature in range(3)]
    owner = OwnerLayout((), tuple(requests), (0, 0, 1), (2,), (), (), ())
    assert header_length(owner, 2) == 6
    message = Message(form, np.array([3, 2, 4, ONE_EACH, 5, 1]), owner)
    assert message.num_rows.tolist() == [3, 2]
    assert message.bags.tolist() == [3, 3, 1]
    assert message.counts.tolist() == [4, 3, 5]
    assert message.send_lengths.tolist() == [True, False, True]
    assert (len(message.ids), len(message.weights), len(message.lengths)) == (12, 12 * weighted, 4)
    assert message.buffer.numel() == 12 * form.id_bytes + 48 * weighted + 16
    message.ids[:], message.weights[:], message.lengths[:] = 1, 1, 1
    assert np.count_nonzero(message.buffer.numpy()) == 12 + 2 * 12 * weighted + 4


@pytest.mark.parametrize("kind", ["table", "row", "grid", "mixed", "rows on every rank", "many pieces"])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_each_owner_gets_the_ids_below_and_above_its_rows(small, kind, id_type, with_lengths):
    layout = make_layout(small.tables, small.make_plan(kind, SIZE), SIZE, pooled=with_lengths)
    drawn = small.draw(7, 6)
    samples = read_samples(small.jagged(drawn, weighted=True), (), layout, is_weighted=True)
    form = MessageFormat(id_type, weighted=True, with_lengths=with_lengths)
    owners = (*layout.owners, layout.replicated)
    for owner, message in zip(owners, pack(samples, owners, layout.index, form), strict=True):
        ids, weights, lengths, header, filled = [], [], [], [6], []
        for request in owner.requests:
            feature = layout.features[request.feature]
            start, stop = request.rows
            bags = [[i for i in bag if start <= i < stop] for bag in drawn[feature]]
            ids += [i - start for bag in bags for i in bag]
            weights += [w for bag in bags for w in small.weight_of(feature, bag)]
            if with_lengths and owner is not layout.replicated and not request.whole:
                places = [place for place, bag in enumerate(bags) if bag]
                assert message.places[owner.requests.index(request)].tolist() == places
                bags = [bag for bag in bags if bag]
                filled.append(len(bags))
            if with_lengths and all(len(bag) == 1 for bag in bags):
                header.append(ONE_EACH)
            else:
                header.append(sum(map(len, bags)))
                lengths += [len(bag) for bag in bags] if with_lengths else []
        assert message.header.tolist() == header + filled
        assert message.ids.dtype == id_type
        assert message.ids.tolist() == ids
        assert message.weights.tolist() == weights
        assert message.lengths.tolist() == lengths


def test_places_without_lengths_are_one_id_each_and_further_bags_are_empty():
    values, offsets = np.zeros(6, np.int32), np.zeros(7, np.int32)
    nothing = np.empty(0, np.float32)
    ids = np.array([8, 9, 7], np.int32)
    lookups = np.array([[1, 2, -1, 2, 3, 3]])
    place_requests(ids, nothing, np.empty(0, np.int32), lookups, 3, values, nothing, offsets)
    assert values.tolist() == [0, 0, 0, 9, 7, 0]
    assert offsets.tolist() == [0, 0, 0, 3, 4, 5, 0]


@pytest.mark.parametrize("num_pieces", [2, 60])
def test_ids_are_sorted_out_among_a_few_pieces_and_many(small, num_pieces):
    """Many are searched for each id by halving."""
    table = EmbeddingBagConfig(name="t", num_embeddings=130, embedding_dim=4, feature_names=["f"])
    bounds = np.linspace(0, 130, num_pieces + 1).astype(int)
    shards = [Shard("t", n % SIZE, rows, (0, 4)) for n, rows in enumerate(pairwise(bounds.tolist()))]
    layout = make_layout([table], Plan(tuple(shards)), SIZE)
    ids = np.random.default_rng(0).integers(0, 130, 90).tolist()
    batch = small.jagged({"f": [ids[first : first + 3] for first in range(0, 90, 3)]})
    form = MessageFormat(np.int32, weighted=False, with_lengths=True)
    messages = pack(read_samples(batch, (), layout, is_weighted=False), layout.owners, layout.index, form)
    for owner, message in zip(layout.owners, messages, strict=True):
        bounds = [request.rows for request in owner.requests]
        assert message.ids.tolist() == [i - start for start, stop in bounds for i in ids if start <= i < stop]
