"""windrow.launch.explain_caches: a picture comes out, with times and without."""

from pathlib import Path

import pytest

from windrow.launch.epoch_estimate import EpochTime
from windrow.launch.explain_caches import Explanation, SizeEstimate, write_explanation_plot


def explanation(*, timed: bool) -> Explanation:
    sizes = tuple(
        SizeEstimate(
            alpha=alpha,
            kept_rows=round(1000 * alpha),
            memory_bytes=round(40_000 * alpha),
            remote_rows=1e6 * (3 - alpha) ** 2,
            remote_bytes=48e6 * (3 - alpha) ** 2,
            time=EpochTime(processor_s=2.0, device_s=0.0, exchange_s=0.5 * (3 - alpha) ** 2, reduction_s=0.1)
            if timed
            else None,
        )
        for alpha in (0.0, 0.01, 0.2, 1.0, 2.0, 3.0)
    )
    return Explanation(
        num_vertices=4000,
        num_parts=4,
        steps=12,
        input_rows=2e7,
        row_bytes=40,
        wire_row_bytes=40,
        work=None,
        pipelined=True,
        sizes=sizes,
        curve=sizes[:-1],
        knee=sizes[3],
        automatic=sizes[4],
        everything=sizes[5],
        chosen=sizes[4],
    )


@pytest.mark.parametrize("timed", [False, True])
def test_a_picture_is_written(tmp_path: Path, timed: bool) -> None:
    path = tmp_path / "explain.png"
    write_explanation_plot(explanation(timed=timed), path, title="tolokers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
