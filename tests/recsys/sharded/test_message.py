"""Sizes and parts of a message follow from its header alone."""

import numpy as np
import pytest

from windrow.recsys.sharded.packing import ONE_EACH, Message, MessageFormat


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
