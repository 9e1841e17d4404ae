"""A line with a floor through timings: robust against the slow spells of a shared machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["TimeCurve", "fit_time_curve", "median_curve"]


@dataclass(frozen=True)
class TimeCurve:
    """``seconds(x) = latency_s + max(0, seconds_per_unit * x - hidden_s)``.

    Attributes:
        latency_s: the floor.
        seconds_per_unit: the slope, once the line is above the floor.
        hidden_s: what of the slope's seconds passes within the floor.
    """

    latency_s: float
    seconds_per_unit: float
    hidden_s: float

    def seconds(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The curve's value at each entry of `x`."""
        return self.latency_s + np.maximum(0.0, self.seconds_per_unit * x - self.hidden_s)


def median_curve(samples: Mapping[float, Sequence[float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points that a curve is fitted to: what was timed, and the median of its repeats, by rising size.

    Args:
        samples: seconds of every repeat, under the size that was timed.
    """
    sizes = sorted(samples)
    return np.array(sizes, dtype=np.float64), np.array([float(np.median(samples[size])) for size in sizes])


def fit_time_curve(samples: Mapping[float, Sequence[float]]) -> TimeCurve:
    """Fit floor and line so that the sum of *relative* deviations from the medians is least.

    Medians of repeats, so that less than half of a size's samples may be anything. Relative, since 1 KB counts as
    much as 64 MB. Absolute, not squared, so that a size which came out wrong as a whole is passed by.

    Some best fit of this kind passes through as many points as it has parameters left, as every least absolute fit
    does (Bloomfield, Steiger: Least Absolute Deviations, 1983). So all candidates are tried: each line through two
    points, with a floor at each point or without one (the line's own value at 0). Lines that fall are not among them,
    nor are floors below the line, so nothing comes out negative.

    Args:
        samples: seconds of every repeat, under the size that was timed; at least one size.

    Returns:
        The curve. With one size, or where no line rises, it is flat. Cost: O(k^4) for k sizes, of which there are
        about ten: well below a millisecond.

    Raises:
        ValueError: no samples, or a size without any.
    """
    if not samples or any(len(repeats) == 0 for repeats in samples.values()):
        raise ValueError("expected at least one size, and at least one sample of each")
    x, seconds = median_curve(samples)
    # A clock that did not move between two readings would make relative deviations infinite.
    y = np.maximum(seconds, 1e-9)
    first, second = np.triu_indices(len(x), 1)
    slopes = np.append((y[second] - y[first]) / (x[second] - x[first]), 0.0)
    starts = np.append(y[first], 0.0) - slopes * np.append(x[first], 0.0)
    # [lines, floors, sizes]; a floor of 0 stands for none, the last line is flat and has floors only.
    floors = np.maximum(starts[:, None], np.append(y, 0.0)[None, :])
    curves = np.maximum(floors[:, :, None], (starts[:, None] + slopes[:, None] * x)[:, None, :])
    deviations = (np.abs(curves - y) / y).sum(axis=2)
    deviations[slopes < 0] = np.inf
    line, floor = np.unravel_index(int(np.argmin(deviations)), deviations.shape)
    latency, slope = float(floors[line, floor]), float(slopes[line])
    return TimeCurve(latency, slope, latency - float(starts[line]) if slope > 0 else 0.0)
