"""windrow.launch.report.panel: texts that stay texts, colours, ticks."""

import html

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.report.panel import chart, plain


@given(st.text())
def test_a_plain_text_has_no_markup_and_loses_nothing(text: str) -> None:
    assert not set(plain(text)) & set("<>")
    assert html.unescape(plain(text)) == html.unescape(html.unescape(html.escape(text)))


def test_series_beyond_the_palette_have_another_hatching_and_their_texts_are_no_markup() -> None:
    rows = [{"x": 1, "y": 2, "series": f"<{number}>"} for number in range(32)]
    for names in ([], [row["series"] for row in rows]):
        bars = chart("bar", pd.DataFrame(rows), x="epoch", y="", hover="", names=names).data
        assert len({(bar.marker.color, bar.marker.pattern.shape) for bar in bars}) == 32
        assert bars[0].name == "&lt;0&gt;"


def test_points_are_marked_and_epochs_get_a_tick_each_while_there_are_few() -> None:
    for last, mode, ticks in ((12, "lines+markers", 1), (25, "lines+markers", None), (26, "lines", None)):
        rows = pd.DataFrame({"x": range(1, last + 1), "y": range(last)})
        figure = chart("line", rows, x="epoch", y="seconds", hover="")
        assert (figure.data[0].mode, figure.layout.xaxis.dtick) == (mode, ticks)
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("epoch", "seconds")


def test_nothing_is_an_empty_chart() -> None:
    assert not sum(
        len(bar.x)
        for bar in chart("bar", pd.DataFrame({"x": [], "y": []}), x="epoch", y="", hover="", names=["a"]).data
    )


def test_options_of_the_caller_win() -> None:
    layout = chart("bar", pd.DataFrame({"x": [1], "y": [1]}), x="", y="", hover="", layout={"height": 99}).layout
    assert (layout.height, layout.showlegend) == (99, False)
