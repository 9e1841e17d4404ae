"""windrow.recsys.log.clustering.external_sort: DuckDB's hash against hashlib's."""

import hashlib

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.clustering.external_sort import session_hash


def expected(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little")


@given(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    st.integers(-(2**63), 2**63 - 1),
)
def test_the_hash_is_that_of_the_text(text: str, number: int) -> None:
    query = f"SELECT {session_hash('s', '7')}, {session_hash('n', '7')} FROM (SELECT ? AS s, ?::BIGINT AS n)"
    assert duckdb.execute(query, [text, number]).fetchall() == [(expected(text), expected(str(number)))]


def test_rows_without_a_session_differ() -> None:
    query = f"SELECT {session_hash('NULL', 'row')} FROM range(3) AS t(row)"
    assert duckdb.execute(query).fetchall() == [(expected(f"row {row}"),) for row in range(3)]
