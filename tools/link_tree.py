"""Make a folder of links that looks like the installed library, for tools that cannot follow an editable install.

    .typecheck/windrow/comm  ->  comm
    .typecheck/windrow/gnn   ->  gnn
    ...

Type checkers and editors read this tree; nothing is imported from it and git ignores it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LIBRARY_FOLDERS", "SCRIPT_FOLDERS", "make_link_tree"]

LIBRARY_FOLDERS = ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
"""Folders that are installed under `windrow`; those that do not exist are passed over."""

SCRIPT_FOLDERS = ("benchmarks", "examples", "tools")
"""Folders of Python files that are not installed, linked beside `windrow`."""


def make_link_tree(checkout: Path, tree: Path) -> list[str]:
    """Link the checkout's folders under their import names; links of folders that are gone are removed.

    Args:
        checkout: root of the checkout.
        tree: folder to fill, created where it is missing.

    Returns:
        Import names of what was linked, for example ``["windrow", "tools"]``.
    """
    scripts = [name for name in SCRIPT_FOLDERS if any((checkout / name).rglob("*.py"))]
    _link(tree / "windrow", checkout, [name for name in LIBRARY_FOLDERS if (checkout / name).is_dir()])
    _link(tree, checkout, scripts)
    return ["windrow", *scripts]


def _link(folder: Path, checkout: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_symlink():
            entry.unlink()
    for name in names:
        (folder / name).symlink_to(checkout.resolve() / name, target_is_directory=True)


def main(arguments: Sequence[str]) -> int:
    """Make the tree and print where it is."""
    checkout = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tree", type=Path, default=checkout / ".typecheck", help="folder to fill (default: .typecheck)"
    )
    tree: Path = parser.parse_args(arguments).tree
    make_link_tree(checkout, tree)
    print(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
