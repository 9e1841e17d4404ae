"""Compiled loops of `windrow.recsys.readers.criteo`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["parse_criteo"]

TAB, NEWLINE, RETURN, MINUS, ZERO, NINE = 9, 10, 13, 45, 48, 57
LOWER_A = 97


@numba.njit(cache=True, nogil=True)
def parse_criteo(
    data: npt.NDArray[np.uint8],
    num_dense: int,
    values: npt.NDArray[np.int64],
    valid: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """Parse lines of a label, decimal fields and hexadecimal fields with tabs between them.

    Args:
        data: whole lines, each with its line end.
        num_dense: fields after the label that are decimal; the rest is hexadecimal.
        values: [fields, lines]; written, 0 where a field is empty.
        valid: [fields, ceil(lines / 8)] of zeros, bit r % 8 of byte r // 8 for line r; set where there is a value.

    Returns:
        ``(line, field)`` of what is no such field, or of a field too many or too few; (-1, -1) where all is right.
    """
    num_fields = values.shape[0]
    position = 0
    size = data.size
    line = 0
    while position < size:
        byte_index, bit = line >> 3, np.uint8(1 << (line & 7))
        for field in range(num_fields):
            start = position
            number = np.int64(0)
            negative = False
            if field <= num_dense:
                if data[position] == MINUS:
                    negative = True
                    position += 1
                    start += 1
                while True:
                    digit = np.int64(data[position]) - ZERO
                    if digit < 0 or digit > 9:
                        break
                    number = number * 10 + digit
                    position += 1
            else:
                while True:
                    character = np.int64(data[position])
                    digit = character - ZERO
                    if digit < 0 or digit > 9:
                        lower = character | 32
                        if lower < LOWER_A or lower > LOWER_A + 5:
                            break
                        digit = lower - LOWER_A + 10
                    number = (number << 4) | digit
                    position += 1
            digits = position - start
            ending = data[position]
            if ending == RETURN:
                position += 1
                ending = data[position]
            expected = TAB if field < num_fields - 1 else NEWLINE
            if ending != expected or digits > 16 or (negative and digits == 0):
                return line, field
            position += 1
            values[field, line] = -number if negative else number
            if digits > 0:
                valid[field, byte_index] |= bit
        line += 1
    return -1, -1
