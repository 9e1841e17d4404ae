"""Messages to owners, against sorting ids out bag by bag: their parts, packing, and what arrives."""

import numpy as np
import pytest
import torch

from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import ONE_EACH, Message, MessageFormat, pack, read_samples, unpack
from windrow.recsys.sharded.packing_kernels import place_requests, summarise

SIZE = 3
SAMPLES = [4, 0, 6]


@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts(id_type, weighted):
    form = MessageFormat(id_type, weighted=weighted, with_lengths=True)
    message = Message(form, np.array([3, 2, 4, ONE_EACH, 0]), (0, 0, 1))
    assert message.num_rows.tolist() == [3, 2]
    assert message.counts.tolist() == [4, 3, 0]
    assert message.send_lengths.tolist() == [True, False, True]
    assert (len(message.ids), len(message.weights), len(message.lengths)) == (7, 7 * weighted, 5)
    assert message.buffer.numel() == 7 * form.id_bytes + 28 * weighted + 20
    message.ids[:], message.weights[:], message.lengths[:] = 1, 1, 1
    assert np.count_nonzero(message.buffer.numpy()) == 7 + 2 * 7 * weighted + 5


def test_unpooled_lookups_need_no_lengths():
    message = Message(
        MessageFormat(np.int32, weighted=False, with_lengths=False), np.array([3, 4, 3]), (0, 0)
    )
    assert (len(message.ids), len(message.lengths)) == (7, 0)


def test_empty():
    assert (
        Message(MessageFormat(np.int32, weighted=False, with_lengths=True), np.array([5]), ()).buffer.numel()
        == 0
    )


@pytest.mark.parametrize("kind", ["table", "row", "grid", "mixed", "rows on every rank", "many pieces"])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_each_owner_gets_the_ids_below_and_above_its_rows(small, kind, id_type, with_lengths):
    layout = make_layout(small.tables, small.make_plan(kind, SIZE), SIZE)
    drawn = small.draw(7, 6)
    samples = read_samples(small.jagged(drawn, weighted=True), (), layout, is_weighted=True)
    form = MessageFormat(id_type, weighted=True, with_lengths=with_lengths)
    for owner, message in zip(layout.owners, pack(samples, layout.owners, layout.index, form), strict=True):
        ids, weights, lengths, header = [], [], [], [6]
        for request in owner.requests:
            feature = layout.features[request.feature]
            start, stop = request.rows
            bags = [[i for i in bag if start <= i < stop] for bag in drawn[feature]]
            ids += [i - start for bag in bags for i in bag]
            weights += [w for bag in bags for w in small.weight_of(feature, bag)]
            if with_lengths and request.whole and all(len(bag) == 1 for bag in bags):
                header.append(ONE_EACH)
            else:
                header.append(sum(map(len, bags)))
                lengths += [len(bag) for bag in bags] if with_lengths else []
        assert message.header.tolist() == header
        assert message.ids.dtype == id_type
        assert message.ids.tolist() == ids
        assert message.weights.tolist() == weights
        assert message.lengths.tolist() == lengths


def test_no_samples(small):
    layout = make_layout(small.tables, small.make_plan("row", SIZE), SIZE)
    samples = read_samples(small.jagged(small.draw(0, 0)), (), layout, is_weighted=False)
    for message in pack(
        samples, layout.owners, layout.index, MessageFormat(np.int32, weighted=False, with_lengths=True)
    ):
        assert message.buffer.numel() == 0
        assert message.num_rows.tolist() == [0]


@pytest.mark.parametrize("kind", ["table", "one rank", "column", "grid", "mixed"])
@pytest.mark.parametrize("pooled", [True, False])
def test_lookups_outside_ranks_inside(small, kind, pooled):
    layout = make_layout(small.tables, small.make_plan(kind, SIZE), SIZE)
    form = MessageFormat(np.int32, weighted=pooled, with_lengths=pooled)
    drawn = [small.draw(rank, number) for rank, number in enumerate(SAMPLES)]
    sent = [
        pack(
            read_samples(small.jagged(d, weighted=pooled), (), layout, is_weighted=pooled),
            layout.owners,
            layout.index,
            form,
        )
        for d in drawn
    ]
    for number, owner in enumerate(layout.owners):
        inputs = unpack([messages[number] for messages in sent], owner, form)
        assert len(inputs) == (bool(owner.lookups) if pooled else 1)
        if not inputs:
            continue
        (found,) = inputs
        values, weights, lengths = [], [], []
        for lookup in owner.lookups:
            request = owner.requests[lookup.request]
            feature = layout.features[request.feature]
            for samples in drawn:
                start, stop = request.rows
                bags = [[i for i in bag if start <= i < stop] for bag in samples[feature]]
                values += [i - start for bag in bags for i in bag]
                weights += [w for bag in bags for w in small.weight_of(feature, bag)]
                lengths += [len(bag) for bag in bags] if pooled else [sum(map(len, bags))]
        assert found.values.tolist() == values
        assert found.offsets.tolist() == [0, *np.cumsum(lengths, dtype=int)]
        assert found.num_bags == (tuple(SAMPLES) if pooled else (1,) * SIZE)
        assert found.counts.sum() == len(values)
        if pooled:
            assert found.weights.tolist() == weights
        else:
            assert found.weights is None


def test_a_part_of_the_lookups(small):
    layout = make_layout(small.tables, small.make_plan("table", 1), 1)
    form = MessageFormat(np.int64, weighted=False, with_lengths=False)
    sent = [
        pack(
            read_samples(small.jagged(small.draw(r, n)), (), layout, is_weighted=False),
            layout.owners,
            layout.index,
            form,
        )[0]
        for r, n in enumerate(SAMPLES)
    ]
    (owner,) = layout.owners
    (everything,) = unpack(sent, owner, form)
    segments = everything.values.split(everything.counts.sum(axis=0).tolist())
    part = everything.select([3, 1])
    assert torch.equal(part.values, torch.cat([segments[3], segments[1]]))
    assert part.offsets.diff().tolist() == everything.counts[:, [3, 1]].T.reshape(-1).tolist()
    assert part.offsets.dtype == torch.int64


LIMITS = np.array([10, -1, 5], np.int64)


def look(lengths, ids):
    starts, one_each = np.full(4, -7, np.int64), np.zeros(3, np.bool_)
    lawful = summarise(np.array(lengths, np.int32), np.array(ids, np.int64), LIMITS, starts, one_each)
    return lawful, starts.tolist(), one_each.tolist()


def test_summary():
    assert look([[1, 1], [2, 0], [0, 1]], [9, 0, 77, -5, 4]) == (True, [0, 2, 4, 5], [True, False, False])


@pytest.mark.parametrize(
    ("lengths", "ids"),
    [
        ([[1, 1], [0, 0], [0, 0]], [9, 10]),
        ([[1, 1], [0, 0], [0, 0]], [-1, 0]),
        ([[0, 0], [0, 0], [0, 1]], [5]),
        ([[2, -1], [0, 0], [0, 0]], [5]),
        ([[1, 1], [0, 0], [0, 0]], [5]),
        ([[1, 0], [0, 0], [0, 0]], [5, 5]),
    ],
)
def test_unlawful(lengths, ids):
    assert not look(lengths, ids)[0]


def test_places_without_lengths_are_one_id_each_and_further_bags_are_empty():
    values, offsets = np.zeros(6, np.int32), np.zeros(7, np.int32)
    nothing = np.empty(0, np.float32)
    ids = np.array([8, 9, 7], np.int32)
    lookups = np.array([[1, 2, -1, 2, 3, 3]])
    place_requests(ids, nothing, np.empty(0, np.int32), lookups, 3, values, nothing, offsets)
    assert values.tolist() == [0, 0, 0, 9, 7, 0]
    assert offsets.tolist() == [0, 0, 0, 3, 4, 5, 0]
