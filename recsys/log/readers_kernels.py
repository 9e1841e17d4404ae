"""Compiled loops of `windrow.recsys.log.readers`: lines of Criteo's logs and of libfm's, parsed."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["parse_criteo", "parse_libfm"]

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]

TAB, NEWLINE, RETURN, BLANK, PLUS, MINUS, POINT, ZERO, COLON = 9, 10, 13, 32, 43, 45, 46, 48, 58
LOWER_A, LOWER_E = 97, 101


@numba.njit(inline="always")
def _digits(data: Bytes, position: int, number: Any) -> tuple[Any, int]:
    """A number followed by the digits from a position on, and where they end."""
    while 0 <= np.int64(data[position]) - ZERO <= 9:
        number = number * 10 + (np.int64(data[position]) - ZERO)
        position += 1
    return number, position


@numba.njit(cache=True, nogil=True)
def parse_criteo(data: Bytes, num_dense: int, values: Longs, valid: Bytes) -> tuple[int, int]:
    """Parse lines of a label, `num_dense` decimal fields and hexadecimal ones, with tabs between them.

    Each line has its end. Written: `values` [fields, lines], 0 where a field is empty; `valid` [fields,
    ceil(lines / 8)], zeros before, bit r % 8 of byte r // 8 where line r has a value. Returns ``(line, field)`` of what
    is no such field, or of a field too many or too few; (-1, -1) where all is right.
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
                number, position = _digits(data, position, np.int64(0))
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


MOST_DIGITS = 18


@numba.njit(cache=True, nogil=True)
def _parse_number(data: Bytes, position: int) -> tuple[float, int]:
    """A decimal number and where it ends; an end equal to the start means that there is none."""
    start = position
    sign = 1.0
    if data[position] == MINUS or data[position] == PLUS:
        if data[position] == MINUS:
            sign = -1.0
        position += 1
    first = position
    mantissa, position = _digits(data, position, 0.0)
    digits, scale = position - first, 0
    if data[position] == POINT:
        first = position + 1
        mantissa, position = _digits(data, first, mantissa)
        scale = first - position
        digits -= scale
    if digits == 0:
        return 0.0, start
    if (data[position] | 32) == LOWER_E:
        position += 1
        exponent_sign = 1
        if data[position] == MINUS or data[position] == PLUS:
            if data[position] == MINUS:
                exponent_sign = -1
            position += 1
        first = position
        exponent, position = _digits(data, position, 0.0)
        if position == first:
            return 0.0, start
        scale += exponent_sign * int(min(exponent, 9999.0))
    if scale < 0:
        return sign * mantissa / 10.0**-scale, position
    return sign * mantissa * 10.0**scale, position


@numba.njit(cache=True, nogil=True)
def parse_libfm(data: Bytes, labels: Doubles, offsets: Longs, ids: Longs, weights: Floats) -> tuple[int, int]:
    """Parse lines, each with its end, of a label and pairs ``index:value`` with blanks or tabs between them.

    The last byte is a line end, so looking one byte ahead is safe. Written: `labels` [lines]; `offsets` [lines + 1],
    the pairs of line r are offsets[r] to offsets[r + 1] - 1; their `ids` and `weights` [colons in data]. Returns
    ``(line, position)`` of a byte that does not belong there; (-1, -1) where all is right.
    """
    position = 0
    line = 0
    pairs = 0
    offsets[0] = 0
    while position < data.size:
        label, end = _parse_number(data, position)
        if end == position:
            return line, position
        labels[line] = label
        position = end
        while True:
            character = data[position]
            while character <= BLANK and character != NEWLINE:
                position += 1
                character = data[position]
            if character == NEWLINE:
                break
            start = position
            number, position = _digits(data, position, np.int64(0))
            character = data[position]
            length = position - start
            if length == 0 or length > MOST_DIGITS or character != COLON or data[start - 1] > BLANK:
                return line, position
            position += 1
            digit = np.int64(data[position]) - ZERO
            if 0 <= digit <= 9 and data[position + 1] <= BLANK:
                # A single digit, mostly 1: the value of nearly every pair.
                weights[pairs] = digit
                position += 1
            else:
                weight, end = _parse_number(data, position)
                if end == position:
                    return line, position
                weights[pairs] = weight
                position = end
            ids[pairs] = number
            pairs += 1
        line += 1
        offsets[line] = pairs
        position += 1
    return -1, -1
