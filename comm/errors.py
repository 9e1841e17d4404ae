"""The one hierarchy of errors that windrow raises on purpose.

Every message names the offending value and the cure.
"""

import difflib
import os
from collections.abc import Iterable

__all__ = [
    "CollectiveMismatchError",
    "CommunicationError",
    "DataError",
    "DeadlineError",
    "PeerFailedError",
    "PlanError",
    "RecipeError",
    "StoreError",
    "WindrowError",
    "from_here",
    "nearest_name",
]


class WindrowError(Exception):
    """Base of every error that windrow raises on purpose."""


class DataError(WindrowError, ValueError):
    """Data that the user brought breaks a law; the message names the value, its place and the cure."""


class RecipeError(WindrowError, ValueError):
    """An option is unknown, of the wrong type, out of range, or contradicts another option."""


class PlanError(WindrowError, ValueError):
    """A plan of embedding tables misses or repeats rows, names a rank that is not there, or overflows a memory.

    Attributes:
        shortfall_bytes: what the fullest rank lacks; 0 where memory is not the reason.
    """

    def __init__(self, message: str, *, shortfall_bytes: int = 0) -> None:
        super().__init__(message)
        self.shortfall_bytes = shortfall_bytes


class StoreError(WindrowError, ValueError):
    """A partition store, checkpoint or run folder is damaged, of another version, or does not fit this run."""


class CommunicationError(WindrowError, RuntimeError):
    """Base of the errors between ranks."""


class CollectiveMismatchError(CommunicationError):
    """Ranks called different collectives, or the same one with arguments that must agree and do not."""


class DeadlineError(CommunicationError):
    """A wait outlasted its deadline; the message names rank, stage and the peers that are missing."""


class PeerFailedError(CommunicationError):
    """Another rank of this job failed, so this one cannot go on."""


def from_here(text: str) -> str:
    """A text for the screen, in which paths inside of the current folder start from there."""
    return text.replace(os.path.join(os.getcwd(), ""), "")  # noqa: PTH109, PTH118


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The cure of a name that is none of those known: "Did you mean 'epochs'?", or all names where none is near."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {nearest[0]!r}?" if nearest else f"There are: {', '.join(names) or 'none'}."
