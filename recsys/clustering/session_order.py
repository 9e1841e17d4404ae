"""In which order sessions stand: that of a hash, in the SQL of DuckDB.

RecD (Zhao et al., MLSys 2023, arXiv 2211.05239) deals log messages to shards by a hash of the session (its O1), and
sorts the rows of a table by session and time (its O2). Neither needs a particular hash. This one is the same in every
version of DuckDB, unlike its function ``hash``, so that equal logs give equal files. Sorting by it deals sessions out
at random, however they were numbered: who reads part of the rows has a fair share of all sessions.
"""

__all__ = ["session_hash"]


def session_hash(session: str, row: str) -> str:
    """An expression for the hash of a row's session.

    Args:
        session: expression for the session: whole numbers, text or bytes.
        row: expression for the number of the row: a row without a session is a session of its own.

    Returns:
        SQL for an unsigned 64-bit integer: the last 8 bytes of the MD5 of the session as text, lowest byte first.
    """
    return f"md5_number_lower(coalesce(CAST({session} AS VARCHAR), concat('row ', {row})))"
