"""``python -m windrow.launch`` is the ``windrow`` command."""

import sys

from windrow.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
