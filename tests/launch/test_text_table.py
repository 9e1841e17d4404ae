"""windrow.launch.terminal: what aligns where."""

from windrow.launch.terminal import table


def test_table_aligns_numbers_right_and_text_left() -> None:
    rows = [{"name": "a", "seconds": 1.23456, "rows": 3}, {"name": "longer", "seconds": 12.5, "rows": 1234}]
    assert table(rows).splitlines() == [
        "name    seconds  rows",
        "------  -------  ----",
        "a         1.235     3",
        "longer     12.5  1234",
    ]
    assert table([]) == "(no rows)"


def test_one_word_makes_a_column_text() -> None:
    assert table([{"n": 1}, {"n": "none"}]).splitlines() == ["n", "----", "1", "none"]
