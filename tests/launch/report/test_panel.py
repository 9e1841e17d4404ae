"""windrow.launch.report.panel: texts that stay texts, units, colours, ticks."""

import html

from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.report.panel import (
    axis,
    bar_marker,
    byte_unit,
    curve,
    exact_bytes,
    layout,
    plain,
    series_colour,
    whole_ticks,
)


@given(st.text())
def test_a_plain_text_has_no_markup_and_loses_nothing(text: str) -> None:
    assert not set(plain(text)) & set("<>")
    assert html.unescape(plain(text)) == html.unescape(html.unescape(html.escape(text)))


@given(st.integers(min_value=1, max_value=2**62))
def test_on_an_axis_the_largest_value_is_at_least_one_unit(num_bytes: int) -> None:
    divisor, unit = byte_unit(num_bytes)
    assert num_bytes / divisor >= 1
    assert num_bytes / divisor < 1024 or unit == "PiB"


def test_units_by_example() -> None:
    assert byte_unit(0) == (1.0, "bytes")
    assert byte_unit(1023) == (1.0, "bytes")
    assert byte_unit(1 << 30) == (2.0**30, "GiB")
    assert exact_bytes(1023) == "1,023 bytes"
    assert exact_bytes(1234567) == "1,234,567 bytes (1.2 MiB)"


def test_series_beyond_the_palette_have_another_hatching() -> None:
    markers = [bar_marker(index) for index in range(32)]
    assert len({(marker["color"], marker["pattern"]["shape"]) for marker in markers}) == 32
    assert [series_colour(index) for index in (0, 7, 8)] == [
        "var(--series-0)",
        "var(--series-7)",
        "var(--series-0)",
    ]


def test_few_epochs_get_a_tick_each() -> None:
    assert whole_ticks([1, 2, 3]) == {"tickformat": "d", "dtick": 1}
    assert whole_ticks(range(1, 200)) == {"tickformat": "d"}
    assert whole_ticks([]) == {"tickformat": "d", "dtick": 1}


def test_points_are_marked_while_there_are_few() -> None:
    modes = [curve("loss", range(n), range(n), colour="red")["mode"] for n in (25, 26)]
    assert modes == ["lines+markers", "lines"]


def test_options_of_the_caller_win() -> None:
    assert axis("seconds", type="log")["type"] == "log"
    assert axis("seconds")["title"]["text"] == "seconds"
    made = layout(x=axis("a"), y=axis("b"), height=99, showlegend=False)
    assert (made["height"], made["showlegend"], made["xaxis"]["title"]["text"]) == (99, False, "a")
