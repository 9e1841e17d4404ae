"""Where a falling curve stops being worth its price: two definitions, both over points from few kept rows to many."""

import numpy as np
import numpy.typing as npt

__all__ = ["knee_of_curve", "least_that_suffices"]


def knee_of_curve(kept: npt.ArrayLike, cost: npt.ArrayLike) -> int:
    """The point of a falling curve that lies furthest below the straight line from its first point to its last.

    Left of it a kept row saves more than the average row does, right of it less (Satopaa et al.: Finding a "Kneedle"
    in a Haystack, ICDCS Workshops 2011, without its smoothing)::

        cost
         o .
         |   .          line
         |o     .
         |  o      .
         |    K       .           K: the knee
         |        o      o  .
         +-------------------- o   kept

    Args:
        kept: [n] rising, at least one.
        cost: [n] what is paid at each, never rising.

    Returns:
        Position of the knee. 0 where the cost never falls; the last where it falls in a straight line, or faster and
        faster: then each row kept is worth as much as the one before.
    """
    x, y = np.asarray(kept, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    fall, width = y[0] - y[-1], x[-1] - x[0]
    if fall <= 0 or width <= 0:
        return 0
    below_the_line = 1.0 - (x - x[0]) / width - (y - y[-1]) / fall
    furthest = int(below_the_line.argmax())
    # Rounding alone makes a straight line bend by some 1e-16.
    return furthest if below_the_line[furthest] > 1e-9 else len(x) - 1


def least_that_suffices(cost: npt.ArrayLike, *, tolerance: float) -> int:
    """The first point that costs hardly more than the cheapest one.

    Args:
        cost: [n], at least one.
        tolerance: how much more may be paid, as a share of the least cost.

    Returns:
        Position of the first point whose cost is at most ``(1 + tolerance)`` times the least.
    """
    y = np.asarray(cost, dtype=np.float64)
    return int((y <= (1.0 + tolerance) * y.min()).argmax())
