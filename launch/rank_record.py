"""What each rank did in one epoch: a line of ranks.jsonl.

    {"epoch": 1, "ranks": [{"host": "a", "seconds": 1.2, "stage_seconds": {"sample": 0.1, ...},
                            "bytes_sent": {"features: rows": [0, 1234]}, "bytes_received": {"features: rows": [0, 980]},
                            "bytes_reduced": 4096, "rows_local": 10, "rows_cached": 5, "rows_remote": 20,
                            "peak_memory_bytes": 123, ...},
                           ...]}

The place in a list is a rank: ``ranks[p]["bytes_sent"][stage][q]`` is what p sent to q. What a line of an older version
lacks has its default: no row was found in a cache.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from windrow.launch.epoch_lines import read_lines
from windrow.launch.rank_cost import RankCost

__all__ = ["RankRecord", "read_rank_records"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """One epoch, rank by rank."""

    epoch: int
    """Epochs finished, this one included: the first has 1."""
    ranks: tuple[RankCost, ...]
    """One for each rank."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"epoch": self.epoch, "ranks": [rank.to_dict() for rank in self.ranks]})

    @staticmethod
    def from_json(line: str) -> "RankRecord":
        """The inverse of `to_json`.

        Raises:
            ValueError: the line is no JSON object, or has not exactly the fields of a record.
        """
        values = json.loads(line)
        try:
            ranks = tuple(RankCost(**rank) for rank in values.pop("ranks"))
            return RankRecord(**values, ranks=ranks)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not the record of an epoch's ranks: {line[:100]!r}") from error


def read_rank_records(path: Path) -> list[RankRecord]:
    """Read what the ranks of a run did.

    Args:
        path: a ranks.jsonl; need not exist.

    Returns:
        The records in order. A last line that a killed process left unfinished is passed over.

    Raises:
        StoreError: another line is not a record.
    """
    return read_lines(path, RankRecord.from_json)
