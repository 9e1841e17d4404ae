"""Conversions between float32 and the bits of 16-bit floating-point numbers, for code compiled by Numba.

    float16    sign 1, exponent 5, fraction 10 bits (IEEE 754 binary16)
    bfloat16   sign 1, exponent 8, fraction 7 bits: the upper half of a float32

Numba knows neither type; the processor converts many at once, which LLVM does where loops use these.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    import numpy as np

__all__ = ["from_bfloat16", "from_float16", "to_bfloat16", "to_float16"]

_INT16, _INT32, _FLOAT, _HALF = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.HalfType()
_SHIFT = 16
_JUST_BELOW_HALF = 0x7FFF
"""What rounding adds to the lower half of a float32, and one more where the upper half is odd: ties go to even."""
_NOT_A_NUMBER = 0x7FC0
"""The bfloat16 that stands for every NaN, as in PyTorch: rounding the bits of one could give infinity."""


def _from_float16(_typing_context: object, _bits: types.Integer) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], _HALF), _FLOAT)

    return types.float32(types.uint16), generate


def _to_float16(_typing_context: object, _value: types.Float) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], _HALF), _INT16)

    return types.uint16(types.float32), generate


def _from_bfloat16(_typing_context: object, _bits: types.Integer) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = builder.zext(arguments[0], _INT32)
        return builder.bitcast(builder.shl(wide, _INT32(_SHIFT)), _FLOAT)

    return types.float32(types.uint16), generate


def _to_bfloat16(_typing_context: object, _value: types.Float) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _INT32)
        odd = builder.and_(builder.lshr(bits, _INT32(_SHIFT)), _INT32(1))
        rounded = builder.add(bits, builder.add(odd, _INT32(_JUST_BELOW_HALF)))
        upper = builder.trunc(builder.lshr(rounded, _INT32(_SHIFT)), _INT16)
        is_number = builder.fcmp_ordered("==", arguments[0], arguments[0])
        return builder.select(is_number, upper, _INT16(_NOT_A_NUMBER))

    return types.uint16(types.float32), generate


from_float16 = cast("Callable[[np.uint16], np.float32]", intrinsic(_from_float16))
"""The value of a float16, given by its bits; exact."""

to_float16 = cast("Callable[[np.float32], np.uint16]", intrinsic(_to_float16))
"""The bits of the nearest float16, ties to even; infinity from 65520 on."""

from_bfloat16 = cast("Callable[[np.uint16], np.float32]", intrinsic(_from_bfloat16))
"""The value of a bfloat16, given by its bits; exact."""

to_bfloat16 = cast("Callable[[np.float32], np.uint16]", intrinsic(_to_bfloat16))
"""The bits of the nearest bfloat16, ties to even; one NaN for all."""
