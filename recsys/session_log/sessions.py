"""Which samples a generated log has, and in which order: session, place in it, time. No values yet.

    session 0   0   1    2   3        begins within the first gap; each sample within its own equal share
    session 1     0  1 2   3  4 5     of the session's time
    session 2       0       1
                ------------------->  time; the log in order of time has the samples as they meet a falling line

Everything is a function of seed and session number, so any range of sessions can be made anywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.session_log.options import SampleOrder, SessionLogOptions, check_order

__all__ = ["Samples", "sample_blocks", "session_sizes", "sessions_for", "uniform"]

BEGINNING_US = 1_700_000_000_000_000
"""Time of the first session: an instant of November 2023, in microseconds since 1970."""

SESSIONS_PER_CHUNK = 1 << 14
"""Sessions whose samples are ordered at a time: 6 MB at 16.5 samples each."""

SIZES, BEGINNINGS, MOMENTS = range(3)
"""What random numbers of this module are for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Samples of a log, one behind the other."""

    sessions: npt.NDArray[np.int64]
    """[n] numbers of their sessions."""
    places: npt.NDArray[np.int64]
    """[n] place in the session, from 0."""
    times: npt.NDArray[np.int64]
    """[n] microseconds since 1970."""

    def take(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice) -> "Samples":
        """Some of them, in the order asked for."""
        return Samples(sessions=self.sessions[chosen], places=self.places[chosen], times=self.times[chosen])

    @staticmethod
    def joined(parts: "list[Samples]") -> "Samples":
        """One behind the other."""
        return Samples(
            sessions=np.concatenate([part.sessions for part in parts]),
            places=np.concatenate([part.places for part in parts]),
            times=np.concatenate([part.times for part in parts]),
        )


def uniform(key: int, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Draw from [0, 1) for each number.

    Args:
        key: from `windrow.comm.random.stream_key`.
        numbers: [n] what to draw for.

    Returns:
        [n]; every entry is a function of key and number alone.
    """
    return (hash_ids(key, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def session_sizes(options: SessionLogOptions, sessions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many samples sessions have.

    Args:
        options: of the log.
        sessions: [n] their numbers.

    Returns:
        [n], each at least 1, geometric with mean `options.samples_per_session`.
    """
    if options.samples_per_session == 1:
        return np.ones(sessions.size, np.int64)
    draws = uniform(stream_key(options.seed, Stream.GENERATE, SIZES), sessions)
    going_on = np.log1p(-1 / options.samples_per_session)
    sizes: npt.NDArray[np.int64] = 1 + np.floor(np.log1p(-draws) / going_on).astype(np.int64)
    return sizes


def sessions_for(options: SessionLogOptions, samples: int) -> int:
    """How many sessions, from number 0 on, a log of so many samples needs.

    Args:
        options: of the log.
        samples: at least 1.

    Returns:
        The smallest number of sessions that together have as many.
    """
    found = first = 0
    while True:
        sizes = session_sizes(options, np.arange(first, first + SESSIONS_PER_CHUNK))
        reached = found + np.cumsum(sizes)
        if reached[-1] >= samples:
            return first + int(np.searchsorted(reached, samples)) + 1
        found, first = int(reached[-1]), first + SESSIONS_PER_CHUNK


def sample_blocks(
    options: SessionLogOptions,
    sessions: range,
    *,
    order: SampleOrder,
    block_rows: int,
    samples: int | None = None,
    sessions_per_chunk: int = SESSIONS_PER_CHUNK,
) -> Iterator[Samples]:
    """Put the samples of sessions in order, in bounded memory.

    Args:
        options: of the log.
        sessions: their numbers, without gaps.
        order: of the samples.
        block_rows: samples of each block but the last.
        samples: stop with so many; the last session loses its last ones. None: all.
        sessions_per_chunk: how many are worked on at a time; does not change the result.

    Yields:
        Blocks of samples. Memory: those of a chunk, a block and `options.concurrent_sessions`, 24 bytes each.

    Raises:
        RecipeError: there is no such order.
    """
    check_order(order)
    waiting: list[Samples] = []
    left = samples
    for chunk in _ordered_chunks(options, sessions, order, left, sessions_per_chunk):
        waiting.append(chunk)
        if sum(part.times.size for part in waiting) < block_rows:
            continue
        together = Samples.joined(waiting)
        whole = together.times.size // block_rows * block_rows
        for start in range(0, whole, block_rows):
            yield together.take(slice(start, start + block_rows))
        waiting = [together.take(slice(whole, None))]
    if waiting and (rest := Samples.joined(waiting)).times.size:
        yield rest


def _ordered_chunks(
    options: SessionLogOptions, sessions: range, order: SampleOrder, samples: int | None, per_chunk: int
) -> Iterator[Samples]:
    """Samples in order, in pieces of any size."""
    held: list[Samples] = []
    left = samples
    for first in range(sessions.start, sessions.stop, per_chunk):
        stop = min(first + per_chunk, sessions.stop)
        chunk = _samples_of(options, np.arange(first, stop))
        if left is not None:
            chunk = chunk.take(slice(0, left))
            left -= chunk.times.size
        if order == "sessions":
            yield chunk
            continue
        together = Samples.joined([*held, chunk])
        together = together.take(np.lexsort((together.sessions, together.times)))
        # No later session begins before this instant.
        ready = int(np.searchsorted(together.times, BEGINNING_US + stop * _gap_us(options)))
        yield together.take(slice(0, ready))
        held = [together.take(slice(ready, None))]
    yield from held


def _gap_us(options: SessionLogOptions) -> int:
    """Microseconds in which one session begins."""
    return max(1, options.session_seconds * 1_000_000 // options.concurrent_sessions)


def _samples_of(options: SessionLogOptions, sessions: npt.NDArray[np.int64]) -> Samples:
    """All samples of some sessions, session by session."""
    sizes = session_sizes(options, sessions)
    gap = _gap_us(options)
    key = stream_key(options.seed, Stream.GENERATE, BEGINNINGS)
    begins = BEGINNING_US + sessions * gap + (uniform(key, sessions) * gap).astype(np.int64)
    owners = np.repeat(np.arange(sessions.size), sizes)
    places = np.arange(owners.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lasts = options.session_seconds * 1_000_000
    keys = hash_ids(stream_key(options.seed, Stream.GENERATE, MOMENTS), sessions)[owners]
    within = uniform(0, (keys + places.astype(np.uint64)).view(np.int64))
    sizes = sizes[owners]
    times = begins[owners] + places * lasts // sizes + (within * (lasts // sizes)).astype(np.int64)
    return Samples(sessions=sessions[owners], places=places, times=times)
