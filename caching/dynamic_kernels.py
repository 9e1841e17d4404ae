"""The loop behind `windrow.caching.dynamic`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["MOST_USES", "access"]

NOWHERE, SMALL, MAIN = 0, 1, 2
"""The queue that an id stands in."""

MOST_USES = 3
"""Uses are counted in two bits."""

SMALL_HEAD, SMALL_COUNT, MAIN_HEAD, MAIN_COUNT, FREE_COUNT, NUM_FORGOTTEN = 0, 1, 2, 3, 4, 5
"""Places of the cursors: oldest entry and length of each ring, length of the stack of free slots, and how many ids
the small queue has ever let go."""

Ids = npt.NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def _evict_from_main(
    uses: npt.NDArray[np.uint8],
    queue: npt.NDArray[np.uint8],
    slot_of: npt.NDArray[np.int32],
    main: Ids,
    free: npt.NDArray[np.int32],
    cursors: Ids,
) -> None:
    """Let go the oldest id that was not used since it last came by; the others go round again, one use less."""
    while True:
        oldest = main[cursors[MAIN_HEAD]]
        cursors[MAIN_HEAD] = (cursors[MAIN_HEAD] + 1) % main.size
        if uses[oldest] == 0:
            break
        uses[oldest] -= np.uint8(1)
        main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT] - 1) % main.size] = oldest
    cursors[MAIN_COUNT] -= 1
    queue[oldest] = NOWHERE
    free[cursors[FREE_COUNT]] = slot_of[oldest]
    cursors[FREE_COUNT] += 1
    slot_of[oldest] = -1


@numba.njit(nogil=True, cache=True)
def access(
    ids: Ids,
    shares: tuple[int, int],
    uses: npt.NDArray[np.uint8],
    queue: npt.NDArray[np.uint8],
    stale: npt.NDArray[np.bool_],
    slot_of: npt.NDArray[np.int32],
    forgotten: Ids,
    small: Ids,
    main: Ids,
    free: npt.NDArray[np.int32],
    cursors: Ids,
    found: npt.NDArray[np.int32],
) -> None:
    """Use ids one after another.

    Args:
        ids: [n].
        shares: slots of the small and the main queue; together the capacity, at least 1.
        uses: [N], uses of each cached id.
        queue: [N], which queue each id stands in.
        stale: [N], whether the row of a cached id has changed.
        slot_of: [N], slot of each cached id, -1 for others.
        forgotten: [N], as how many-th the small queue let go each id that it did not use again; 0 for never.
        small: [capacity], ring of ids.
        main: [capacity], ring of ids.
        free: [capacity], stack of slots.
        cursors: see `SMALL_HEAD`.
        found: [n]; written: the slot in which the row of each id was when it was used; -1 where it was not.
    """
    small_share, main_share = shares
    capacity = small_share + main_share
    for i in range(ids.size):
        key = ids[i]
        if queue[key] != NOWHERE:
            found[i] = -1 if stale[key] else slot_of[key]
            stale[key] = False
            uses[key] = min(uses[key] + 1, MOST_USES)
            continue
        found[i] = -1
        while cursors[SMALL_COUNT] + cursors[MAIN_COUNT] >= capacity:
            if cursors[SMALL_COUNT] < small_share:
                _evict_from_main(uses, queue, slot_of, main, free, cursors)
                continue
            oldest = small[cursors[SMALL_HEAD]]
            cursors[SMALL_HEAD] = (cursors[SMALL_HEAD] + 1) % capacity
            cursors[SMALL_COUNT] -= 1
            if uses[oldest] > 1 and main_share > 0:
                queue[oldest] = MAIN
                uses[oldest] = 0
                if cursors[MAIN_COUNT] >= main_share:
                    _evict_from_main(uses, queue, slot_of, main, free, cursors)
                main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = oldest
                cursors[MAIN_COUNT] += 1
            else:
                queue[oldest] = NOWHERE
                free[cursors[FREE_COUNT]] = slot_of[oldest]
                cursors[FREE_COUNT] += 1
                slot_of[oldest] = -1
                cursors[NUM_FORGOTTEN] += 1
                forgotten[oldest] = cursors[NUM_FORGOTTEN]
        cursors[FREE_COUNT] -= 1
        slot_of[key] = free[cursors[FREE_COUNT]]
        uses[key] = 0
        stale[key] = False
        if forgotten[key] > 0 and cursors[NUM_FORGOTTEN] - forgotten[key] < main_share:
            queue[key] = MAIN
            main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = key
            cursors[MAIN_COUNT] += 1
        else:
            queue[key] = SMALL
            small[(cursors[SMALL_HEAD] + cursors[SMALL_COUNT]) % capacity] = key
            cursors[SMALL_COUNT] += 1
        forgotten[key] = 0
