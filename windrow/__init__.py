"""Distributed training of graph neural networks and recommendation models.

    windrow/__init__.py
    windrow/comm       ->  ../comm          links, so that editors, type checkers and Python find the
    windrow/partition  ->  ../partition     folders of the checkout under the names they are installed by
    ...

Nothing heavy is imported with the package: `connect` loads what it needs when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.comm.connect import connect
    from windrow.training.callbacks import Callback
    from windrow.training.trainer import Trainer

__all__ = ["Callback", "Trainer", "__version__", "connect"]

__version__ = "0.1.0"

_LAZY = {
    "Callback": "windrow.training.callbacks",
    "Trainer": "windrow.training.trainer",
    "connect": "windrow.comm.connect",
}
"""Public name -> the module that it is loaded from when it is first used."""


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'windrow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
