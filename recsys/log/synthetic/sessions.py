"""The samples of a generated log: session, place in it and time, then ids, dense values and labels.

    session 0   0   1    2   3        begins within the first gap; each sample within its own equal share
    session 1     0  1 2   3  4 5     of the session's time
    session 2       0       1
                ------------------->  time; the log in order of time has the samples as they meet a falling line

Everything is a function of seed, session number and place in the session. A feature has versions, and a list moves
along one until the next begins::

    history of session 7:   version 0   4 9 1 7 3 3 8 ...     an endless row of ids
                                    [4 9 1]               places 0, 1    unchanged
                                      [9 1 7]             place 2        moved on by one
                        version 1   5 5 2 6 ...
                                    [5 5]                 place 3        drawn anew
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.log.synthetic.options import FeatureGroup, SampleOrder, SessionFeature, SessionLogOptions

__all__ = ["Samples", "draw_samples", "log_schema", "popularity", "sample_blocks"]

BEGINNING_US = 1_700_000_000_000_000
"""Time of the first session: an instant of November 2023, in microseconds since 1970."""

SESSIONS_PER_CHUNK = 1 << 14
"""Sessions whose samples are ordered at a time: 6 MB at 16.5 samples each."""

SIZES, BEGINNINGS, MOMENTS = range(3)
"""What random numbers of samples are for."""


class Samples(NamedTuple):
    """Samples of a log, one behind the other."""

    sessions: npt.NDArray[np.int64]
    """[n] numbers of their sessions."""
    places: npt.NDArray[np.int64]
    """[n] place in the session, from 0."""
    times: npt.NDArray[np.int64]
    """[n] microseconds since 1970."""

    def take(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice) -> "Samples":
        """Some of them, in the order asked for."""
        return Samples(*(column[chosen] for column in self))

    @staticmethod
    def joined(parts: "Sequence[Samples]") -> "Samples":
        """One behind the other."""
        return Samples(*map(np.concatenate, zip(*parts, strict=True)))


def _uniform(key: int, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Draws from [0, 1), one for each number: a function of key and number alone."""
    return (hash_ids(key, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _session_sizes(options: SessionLogOptions, sessions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many samples sessions have: at least 1, geometric with mean `options.samples_per_session`."""
    if options.samples_per_session == 1:
        return np.ones(sessions.size, np.int64)
    draws = _uniform(stream_key(options.seed, Stream.GENERATE, SIZES), sessions)
    going_on = np.log1p(-1 / options.samples_per_session)
    sizes: npt.NDArray[np.int64] = 1 + np.floor(np.log1p(-draws) / going_on).astype(np.int64)
    return sizes


def sample_blocks(
    options: SessionLogOptions, samples: int, *, order: SampleOrder, block_rows: int
) -> Iterator[Samples]:
    """Put the first samples of sessions 0, 1, ... in order; the last session loses its last ones.

    Yields:
        Blocks of `block_rows` samples, of which the last one may have fewer. Memory: those of a chunk, a block and
        `options.concurrent_sessions`, 24 bytes each.
    """
    waiting: list[Samples] = []
    for chunk in _ordered_chunks(options, samples, order):
        together = Samples.joined([*waiting, chunk])
        whole = together.times.size // block_rows * block_rows
        for start in range(0, whole, block_rows):
            yield together.take(slice(start, start + block_rows))
        waiting = [together.take(slice(whole, None))]
    if waiting[0].times.size:
        yield waiting[0]


def _ordered_chunks(options: SessionLogOptions, samples: int, order: SampleOrder) -> Iterator[Samples]:
    """Samples in order, in pieces of any size."""
    held: list[Samples] = []
    for first in itertools.count(0, SESSIONS_PER_CHUNK):
        stop = first + SESSIONS_PER_CHUNK
        chunk = _samples_of(options, np.arange(first, stop)).take(slice(0, samples))
        samples -= chunk.times.size
        together = Samples.joined([*held, chunk])
        ready = together.times.size
        if order == "time":
            together = together.take(np.lexsort((together.sessions, together.times)))
            if samples:
                # No later session begins before this instant.
                ready = int(np.searchsorted(together.times, BEGINNING_US + stop * _gap_us(options)))
        yield together.take(slice(0, ready))
        held = [together.take(slice(ready, None))]
        if not samples:
            return


def _gap_us(options: SessionLogOptions) -> int:
    """Microseconds in which one session begins."""
    return max(1, options.session_seconds * 1_000_000 // options.concurrent_sessions)


def _samples_of(options: SessionLogOptions, sessions: npt.NDArray[np.int64]) -> Samples:
    """All samples of some sessions, session by session."""
    sizes = _session_sizes(options, sessions)
    gap = _gap_us(options)
    key = stream_key(options.seed, Stream.GENERATE, BEGINNINGS)
    begins = BEGINNING_US + sessions * gap + (_uniform(key, sessions) * gap).astype(np.int64)
    owners = np.repeat(np.arange(sessions.size), sizes)
    places = np.arange(owners.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lasts = options.session_seconds * 1_000_000
    keys = hash_ids(stream_key(options.seed, Stream.GENERATE, MOMENTS), sessions)[owners]
    within = _uniform(0, (keys + places.astype(np.uint64)).view(np.int64))
    sizes = sizes[owners]
    times = begins[owners] + places * lasts // sizes + (within * (lasts // sizes)).astype(np.int64)
    return Samples(sessions[owners], places, times)


WALK, LENGTHS, IDS, DENSE, EFFECTS, LABELS = range(100, 106)
"""What random numbers of columns are for."""

NO_SESSIONS = 1 << 62
"""Session ids are below this: a multiplication by an odd number modulo it gives each session one of its own."""

SESSION_MULTIPLIER = 0x9E3779B97F4A7C15 % NO_SESSIONS
"""2 ** 64 over the golden ratio (Knuth): neighbours end far apart."""

HEAD = 4096
"""Most frequent ids of which each matters on its own."""

LEAST_VARIANCE = 1e-12
"""Of the effects of ids that are drawn."""


def log_schema(options: SessionLogOptions) -> Any:
    """The ``pyarrow.Schema`` of a log."""
    import pyarrow as pa

    ids = [
        (feature.name, pa.int64() if group.mean_length is None else pa.list_(pa.int64()))
        for group in options.groups
        for feature in group.features
    ]
    dense = [(name, pa.float32()) for name in options.dense]
    return pa.schema([("label", pa.int8()), ("session", pa.int64()), ("time", pa.int64()), *dense, *ids])


def draw_samples(options: SessionLogOptions, samples: Samples, map_over: Callable[..., Iterable[Any]] = map) -> Any:
    """Work out all columns of any samples: ``pyarrow.RecordBatch`` of `log_schema`.

    Ids of sessions do not tell their order. With a pool's `map_over`, groups are worked out side by side.
    """
    import pyarrow as pa

    logits = np.full(samples.sessions.size, _bias(options))
    columns: dict[str, Any] = {}
    # In the order of the groups, so that sums do not depend on who was ready first.
    for drawn, effects in map_over(lambda group: _draw_group(options, group, samples), options.groups):
        columns |= drawn
        logits += effects
    keys = hash_ids(stream_key(options.seed, Stream.GENERATE, LABELS), samples.sessions)
    draws = _uniform(0, (keys + samples.places.astype(np.uint64)).view(np.int64))
    columns["label"] = (draws < 1 / (1 + np.exp(-logits))).astype(np.int8)
    columns["session"] = (samples.sessions * np.int64(SESSION_MULTIPLIER)) & np.int64(NO_SESSIONS - 1)
    columns["time"] = samples.times
    schema = log_schema(options)
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def popularity(feature: SessionFeature, head: int | None = None) -> npt.NDArray[np.float64]:
    """How often each id of a feature is drawn, the most frequent one first: shares, all of which add up to 1.

    Only the first ones where `head` says how many.
    """
    edges = np.arange(1, min(head or feature.rows, feature.rows) + 2, dtype=np.float64)
    end = feature.rows + 1.0
    power = 1 - feature.skew
    flat = abs(power) < 1e-9
    shares: npt.NDArray[np.float64] = np.diff(np.log(edges) if flat else edges**power)
    return shares / (math.log(end) if flat else end**power - 1)


def _draw_group(
    options: SessionLogOptions, group: FeatureGroup, samples: Samples
) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
    """Columns of one group, and what they add to the logits [n]."""
    import pyarrow as pa

    from windrow.recsys.log.synthetic import values_kernels

    count = samples.sessions.size
    versions, shifts = np.empty(count, np.int64), np.empty(count, np.int64)
    values_kernels.walk(
        _key(options, WALK, group.name),
        samples.sessions,
        samples.places,
        group.unchanged,
        group.shifted,
        versions,
        shifts,
    )
    lengths = _lengths(options, group, samples, versions)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    logits = np.zeros(count)
    columns: dict[str, Any] = {}
    for feature in group.features:
        drawn = np.empty(offsets[-1], np.int64)
        key = _key(options, IDS, feature.name)
        values_kernels.draw_ids(
            key, samples.sessions, versions, shifts, offsets, feature.rows, feature.skew, _coprime(feature.rows), drawn
        )
        if feature.effect:
            centre, deviation = _effect_moments(options, feature)
            effects = _effects(options, feature, drawn) - centre
            totals = np.bincount(np.repeat(np.arange(count), lengths), effects, minlength=count)
            logits += feature.effect / deviation * (totals / np.sqrt(np.maximum(lengths, 1)))
        columns[feature.name] = drawn
        if group.mean_length is not None:
            # A batch of a row group's size has far less than 2 ** 31 ids.
            columns[feature.name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(drawn))
    for place, name in enumerate(group.dense):
        values = columns[name] = np.empty(count, np.float32)
        values_kernels.draw_dense(_key(options, DENSE, name), samples.sessions, versions, shifts, values)
        # Neighbouring columns pull in opposite directions, as a price and a rating do.
        logits += (-1) ** place * group.dense_effect * values
    return columns, logits


def _effects(
    options: SessionLogOptions, feature: SessionFeature, ids: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """What ids [n] say about clicks."""
    from windrow.recsys.log.synthetic import values_kernels

    effects = np.empty(ids.size)
    values_kernels.id_effects(_key(options, EFFECTS, feature.name), ids, effects)
    return effects


def _effect_moments(options: SessionLogOptions, feature: SessionFeature) -> tuple[float, float]:
    """Mean and deviation of the effect of an id that is drawn: chance gives the few most frequent ones theirs."""
    shares = popularity(feature, HEAD)
    effects = _effects(options, feature, np.arange(shares.size) * _coprime(feature.rows) % feature.rows)
    mean = float(shares @ effects)
    # The others are so many that they have mean 0 and deviation 1 together.
    variance = float(shares @ effects**2) + 1 - float(shares.sum()) - mean**2
    # Below, nearly every id that is drawn is the same one, and the rest is rounding.
    return mean, math.sqrt(variance) if variance > LEAST_VARIANCE else 1.0


def _lengths(
    options: SessionLogOptions, group: FeatureGroup, samples: Samples, versions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Ids of each sample in each feature of a group."""
    if group.mean_length is None:
        return np.ones(samples.sessions.size, np.int64)
    keys = hash_ids(int(_key(options, LENGTHS, group.name)), samples.sessions)
    filled = _uniform(0, keys.view(np.int64)) >= group.empty
    if group.mean_length == 1:
        return filled.astype(np.int64)
    draws = _uniform(1, (keys + versions.astype(np.uint64)).view(np.int64))
    lengths = 1 + np.floor(np.log1p(-draws) / math.log1p(-1 / group.mean_length)).astype(np.int64)
    return lengths * filled


def _bias(options: SessionLogOptions) -> float:
    """The logit that gives the wanted share of clicks: MacKay's approximation of a logistic of a normal variable."""
    variance = sum(feature.effect**2 for feature in options.features)
    variance += sum(len(group.dense) * group.dense_effect**2 for group in options.groups)
    wanted = math.log(options.click_share / (1 - options.click_share))
    return wanted * math.sqrt(1 + math.pi * variance / 8)


def _key(options: SessionLogOptions, purpose: int, name: str) -> np.uint64:
    return np.uint64(stream_key(options.seed, Stream.GENERATE, purpose, *name.encode()))


def _coprime(rows: int) -> int:
    """A multiplier that spreads ranks over a table: near its golden section, without a common divisor."""
    multiplier = max(1, round(rows * 0.6180339887498949))
    while math.gcd(multiplier, rows) != 1:
        multiplier += 1
    return multiplier
