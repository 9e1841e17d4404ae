"""Names and texts of any signs, and limits that hold."""

import pytest

from windrow.recsys.log.duckdb_sql import open_database, sql_name, sql_text

ODD = ["plain", 'with "quotes"', "it's", "a;b -- c", "größe"]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_quoted_comes_back(tmp_path, odd):
    with open_database("100MB", tmp_path) as database:
        found = database.execute(f"SELECT {sql_text(odd)} AS {sql_name(odd)}")
        assert [column[0] for column in found.description] == [odd]
        assert found.fetchone() == (odd,)


def test_settings(tmp_path):
    with open_database("100MB", tmp_path / "work", threads=1) as database:
        (threads, folder, bar) = database.execute(
            "SELECT current_setting('threads'), current_setting('temp_directory'), "
            "current_setting('enable_progress_bar')"
        ).fetchone()
    assert (threads, folder, bar) == (1, str(tmp_path / "work"), False)


def test_paths_are_texts(tmp_path):
    assert sql_text(tmp_path) == f"'{tmp_path}'"
