"""Compiled loops of `windrow.recsys.log.readers`: lines of Criteo's logs and of libfm's, parsed."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["parse_criteo", "parse_libfm"]

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


LINE_FEED, BLANK, PLUS, HYPHEN, POINT, COLON, DIGIT_ZERO = 10, 32, 43, 45, 46, 58, 48
LOWER_E = 101
MOST_DIGITS = 18


@numba.njit(cache=True, nogil=True)
def _parse_number(data: npt.NDArray[np.uint8], position: int) -> tuple[float, int]:
    """A decimal number and where it ends; an end equal to the start means that there is none."""
    start = position
    sign = 1.0
    if data[position] == HYPHEN or data[position] == PLUS:
        if data[position] == HYPHEN:
            sign = -1.0
        position += 1
    digits = 0
    mantissa = 0.0
    scale = 0
    while 0 <= np.int64(data[position]) - DIGIT_ZERO <= 9:
        mantissa = mantissa * 10.0 + (np.int64(data[position]) - DIGIT_ZERO)
        digits += 1
        position += 1
    if data[position] == POINT:
        position += 1
        while 0 <= np.int64(data[position]) - DIGIT_ZERO <= 9:
            mantissa = mantissa * 10.0 + (np.int64(data[position]) - DIGIT_ZERO)
            scale -= 1
            digits += 1
            position += 1
    if digits == 0:
        return 0.0, start
    if (data[position] | 32) == LOWER_E:
        position += 1
        exponent_sign = 1
        if data[position] == HYPHEN or data[position] == PLUS:
            if data[position] == HYPHEN:
                exponent_sign = -1
            position += 1
        exponent = 0
        if not 0 <= np.int64(data[position]) - DIGIT_ZERO <= 9:
            return 0.0, start
        while 0 <= np.int64(data[position]) - DIGIT_ZERO <= 9:
            if exponent < 1000:
                exponent = exponent * 10 + int(data[position]) - DIGIT_ZERO
            position += 1
        scale += exponent_sign * exponent
    if scale < 0:
        return sign * mantissa / 10.0**-scale, position
    return sign * mantissa * 10.0**scale, position


@numba.njit(cache=True, nogil=True)
def parse_libfm(
    data: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32],
) -> tuple[int, int]:
    """Parse lines of a label and pairs ``index:value`` with blanks or tabs between them.

    Args:
        data: whole lines, each with its line end; the last byte is one, so that looking one byte ahead is safe.
        labels: [lines]; written.
        offsets: [lines + 1]; written: the pairs of line r are offsets[r] to offsets[r + 1] - 1.
        ids: [colons in data]; indices, written.
        weights: [colons in data]; values, written.

    Returns:
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
            while character <= BLANK and character != LINE_FEED:
                position += 1
                character = data[position]
            if character == LINE_FEED:
                break
            start = position
            number = np.int64(0)
            digit = np.int64(character) - DIGIT_ZERO
            while 0 <= digit <= 9:
                number = number * 10 + digit
                position += 1
                character = data[position]
                digit = np.int64(character) - DIGIT_ZERO
            length = position - start
            if length == 0 or length > MOST_DIGITS or character != COLON or data[start - 1] > BLANK:
                return line, position
            position += 1
            digit = np.int64(data[position]) - DIGIT_ZERO
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
