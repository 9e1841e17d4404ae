"""Check the types of the library, benchmarks, examples and tools, with mypy as pyproject.toml sets it.

Tests are left out: to hand over a wrong type is half of what they do.
Arguments go to mypy as they are, for example ``python tools/typecheck.py --no-incremental``.
"""

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__: list[str] = []


def main(arguments: Sequence[str]) -> int:
    """Make the link tree, run mypy on everything in it and return its exit status."""
    checkout = Path(__file__).resolve().parent.parent
    # PYTHONSAFEPATH keeps this folder off the import path, so that its neighbour is run by its file name.
    make_link_tree = runpy.run_path(str(checkout / "tools" / "link_tree.py"))["make_link_tree"]
    packages = make_link_tree(checkout, checkout / ".typecheck")
    selection = [word for package in packages for word in ("-p", package)]
    command = [sys.executable, "-P", "-m", "mypy", *selection, *arguments]
    return subprocess.run(command, cwd=checkout, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
