"""What formats save, by the links' model: against its own predictions."""

import dataclasses

import numpy as np
import pytest

from windrow.comm.link_model import predict_all_to_all
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.wire import WireOptions
from windrow.comm.wire_savings import row_savings, saving_rows, sum_savings


def network(rate: str) -> Links:
    return described_links(NetworkDescription(nodes=3, rate=rate, latency_us=1.0))


def test_rows_save_what_the_link_model_says() -> None:
    links, rows = network("1mbit"), np.full((3, 3), 100.0)
    found = {one.form: one for one in row_savings("vectors", links, rows, 64)}
    assert list(found) == ["fp16", "bf16", "int8", "int4"]
    seconds = [predict_all_to_all(links, num_bytes * rows) for num_bytes in (256, 68)]
    assert found["int8"].saved_s == pytest.approx(seconds[0] - seconds[1])
    assert (found["int8"].wire_bytes, found["int8"].saved_bytes) == (6 * 100 * 68, 6 * 100 * (256 - 68))
    assert all(one.pays for one in found.values())
    fast = {one.form: one for one in row_savings("gradients", network("100000gbit"), rows, 64)}
    for form in ("int8", "int4"):
        assert fast[form].saved_s < 1e-6 * found[form].saved_s
        assert not dataclasses.replace(fast[form], codec_s=1e-6).pays, "what is measured here another load would change"


def test_shorter_sums_save_and_the_recipe_is_marked() -> None:
    found = sum_savings(network("1mbit"), 10_000)
    assert [one.saved_bytes > 0 and one.saved_s > 0 for one in found] == [True] * 3
    rows = saving_rows(found, WireOptions(sums="fp8"))
    assert [row[""] for row in rows] == ["pays", "pays", "pays, recipe"]
