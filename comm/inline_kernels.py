"""Small functions for use inside compiled loops: counter-based random numbers and a prefetch instruction.

The random numbers equal those of `windrow.comm.random` bit for bit.

A loop that reads at random places of a large array spends its time waiting for memory. Asking for an entry some steps
before it is read (`prefetch`) lets tens of reads travel at once. One that writes a large array spends a third of it on
reading what it is about to overwrite, unless it writes past the caches (`stream`).

What the compiler does not see by itself: products of 128 bits (`high_product`), signs that are bits of a word, put on
eight numbers at once (`add_signed`), and products and transposes of small matrices in registers (`tile`, `turn`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from windrow.comm.random import FIRST_MULTIPLIER, GOLDEN, MULTIPLIERS_32, SECOND_MULTIPLIER

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "SIGNED",
    "STREAMED",
    "TURNED",
    "add_signed",
    "hash_id",
    "high_product",
    "mix32",
    "mix64",
    "prefetch",
    "stream",
    "tile",
    "turn",
]

_FIRST = np.uint64(FIRST_MULTIPLIER)
_SECOND = np.uint64(SECOND_MULTIPLIER)
_GOLDEN = np.uint64(GOLDEN)
_FIRST_32, _SECOND_32 = map(np.uint32, MULTIPLIERS_32)
_15, _16 = np.uint32(15), np.uint32(16)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@numba.njit(inline="always", cache=True)
def mix64(value: np.uint64) -> np.uint64:
    """Mix one 64-bit integer (SplitMix64 finaliser); see `windrow.comm.random.mix64`."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@numba.njit(inline="always", cache=True)
def mix32(value: np.uint32, key: np.uint32) -> np.uint32:
    """Mix 32 bits with a key of 32 bits, for processors whose vector units have no products of 64 bits.

    Two products, with `windrow.comm.random.MULTIPLIERS_32`; the key enters before the second one.
    """
    value = np.uint32((value ^ np.uint32(value >> _16)) * _FIRST_32)
    value = np.uint32((value ^ np.uint32(value >> _15) ^ key) * _SECOND_32)
    return np.uint32(value ^ np.uint32(value >> _15))


@numba.njit(inline="always", cache=True)
def hash_id(key: np.uint64, number: np.uint64) -> np.uint64:
    """Draw the 64-bit number of one id; see `windrow.comm.random.hash_ids`."""
    return mix64(key ^ mix64(number + _GOLDEN))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, position: Any) -> Any:
    """Of an entry of a contiguous vector of this Numba type."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [position])


def _everywhere(builder: Any, value: Any, columns: int) -> Any:
    """A vector of so many times the value."""
    int32 = ir.IntType(32)
    first = builder.insert_element(ir.Constant(ir.VectorType(value.type, columns), ir.Undefined), value, int32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(int32, columns), [0] * columns))


_READ, _KEEP_IN_ALL_CACHES, _DATA = 0, 3, 1


def _prefetch(_typing_context: object, array: types.Array, _position: types.Integer) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], *arguments)
        address = builder.bitcast(place, ir.IntType(8).as_pointer())
        int32 = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [address.type], ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
        )
        builder.call(function, [address, int32(_READ), int32(_KEEP_IN_ALL_CACHES), int32(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch = cast("Callable[[npt.NDArray[Any], int | np.integer], None]", intrinsic(_prefetch))
"""``prefetch(array, position)`` in compiled code: ask the processor to load an entry of a contiguous vector into its
caches. It has no other effect: a position outside the array is not read, and nothing fails."""

STREAMED = 4
"""Entries of 8 bytes that `stream` copies."""


def _stream(
    _typing_context: object, source: types.Array, _i: types.Integer, target: types.Array, _j: types.Integer
) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(64), STREAMED).as_pointer()
        here, there = (
            builder.bitcast(_pointer(context, builder, array, value, position), kind)
            for array, value, position in zip(signature.args[::2], arguments[::2], arguments[1::2], strict=True)
        )
        written = builder.store(builder.load(here, align=8), there, align=8 * STREAMED)
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        written.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), generate


stream = cast("Callable[[npt.NDArray[Any], int, npt.NDArray[Any], int], None]", intrinsic(_stream))
"""``stream(source, i, target, j)`` in compiled code: copy `STREAMED` entries of contiguous vectors of int64, from entry
i to entry j, which must stand at a multiple of 32 bytes, without loading the target into the caches. Nothing is
checked. Quick where whole cache lines are written."""


def _high_product(
    _typing_context: object, _one: types.Integer, _other: types.Integer
) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(number, wide) for number in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


high_product = cast("Callable[[np.uint64, np.uint64], np.uint64]", intrinsic(_high_product))
"""``high_product(one, other)`` in compiled code: the upper 64 bits of the product of two uint64."""

SIGNED = 8
"""Numbers that `add_signed` takes."""


def _add_signed(
    _typing_context: object,
    target: types.Array,
    _i: types.Integer,
    source: types.Array,
    _j: types.Integer,
    _signs: types.Integer,
    _weight: types.Float,
    _adds: types.Boolean,
) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ints, floats = ir.VectorType(ir.IntType(32), SIGNED), ir.VectorType(ir.FloatType(), SIGNED)
        there, here = (
            builder.bitcast(_pointer(context, builder, array, value, position), kind.as_pointer())
            for array, value, position, kind in zip(
                signature.args[:4:2], arguments[:4:2], arguments[1:4:2], (floats, ints), strict=True
            )
        )
        bits = _everywhere(builder, builder.trunc(arguments[4], ints.element), SIGNED)
        # Bit k goes where number k has its sign.
        bits = builder.shl(bits, ir.Constant(ints, [31 - number for number in range(SIGNED)]))
        bits = builder.and_(bits, ir.Constant(ints, [1 << 31] * SIGNED))
        numbers = builder.bitcast(builder.xor(builder.load(here, align=4), bits), floats)
        weighted = builder.fmul(numbers, _everywhere(builder, arguments[5], SIGNED))
        # A branch, as what is overwritten is not to be waited for.
        with builder.if_else(arguments[6]) as (adds, writes):
            with adds:
                builder.store(builder.fadd(builder.load(there, align=4), weighted), there, align=4)
            with writes:
                builder.store(weighted, there, align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.uint64, types.float32, types.boolean), generate


add_signed = cast(
    "Callable[[npt.NDArray[np.float32], int, npt.NDArray[np.float32], int, np.uint64, np.float32, bool], None]",
    intrinsic(_add_signed),
)
"""``add_signed(target, i, source, j, signs, weight, adds)`` in compiled code: add `SIGNED` entries of a contiguous
vector of float32, from entry j on, to those of another, from entry i on, or write over these if not `adds`; each times
`weight`, and times -1 where its bit of `signs` is set, the lowest for the first. Nothing is checked."""


_Floats: TypeAlias = "npt.NDArray[np.float32]"
Tile: TypeAlias = Callable[[_Floats, int, int, _Floats, int, int, int, _Floats, int, int, int, bool], None]


def tile(rows: int, columns: int) -> Tile:
    """A product of small matrices for compiled code, ``add(c, at, row, a, at, row, inner, b, at, row, inner, adds)``.

    Of contiguous vectors of float32, each from its ``at`` on, where ``a_row``, ``a_inner`` and so on are steps::

        c[c_at + i c_row + j] (+)= sum over k < inner of a[a_at + i a_row + k a_inner] * b[b_at + k b_row + j]

    for i < rows and j < columns, written where not `adds`. Nothing is checked.
    """
    numbers, fused = ir.VectorType(ir.FloatType(), columns), ("contract",)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(place: int, offset: Any) -> Any:
            return _pointer(context, builder, signature.args[place], arguments[place], offset)

        def vector(place: int, offset: Any) -> Any:
            return builder.bitcast(pointer(place, offset), numbers.as_pointer())

        _, c_at, c_row, _, a_at, a_row, a_inner, _, b_at, b_row, inner, adds = arguments
        # LLVM keeps them in registers.
        totals = [cast("Any", cgutils.alloca_once)(builder, numbers) for _ in range(rows)]
        for total in totals:
            builder.store(ir.Constant(numbers, None), total)
        with cgutils.for_range(builder, inner) as loop:
            of_b = builder.load(vector(7, builder.add(b_at, builder.mul(loop.index, b_row))), align=4)
            there = builder.add(a_at, builder.mul(loop.index, a_inner))
            for total in totals:
                factor = _everywhere(builder, builder.load(pointer(3, there)), columns)
                product = builder.fmul(factor, of_b, flags=fused)
                builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
                there = builder.add(there, a_row)
        places = [builder.add(c_at, builder.mul(c_row, ir.Constant(c_row.type, row))) for row in range(rows)]
        with builder.if_then(adds):
            for total, place in zip(totals, places, strict=True):
                builder.store(builder.fadd(builder.load(vector(0, place), align=4), builder.load(total)), total)
        for total, place in zip(totals, places, strict=True):
            builder.store(builder.load(total), vector(0, place), align=4)
        return context.get_dummy_value()

    def add(  # Numba wants each by itself
        _: object,
        c: Any,
        _1: Any,
        _2: Any,
        a: Any,
        _3: Any,
        _4: Any,
        _5: Any,
        b: Any,
        _6: Any,
        _7: Any,
        _8: Any,
        _9: Any,
    ) -> tuple[Any, Callable[..., Any]]:
        steps = [types.intp] * 2
        return types.void(c, *steps, a, *steps, types.intp, b, *steps, types.intp, types.boolean), generate

    return cast("Tile", intrinsic(add))


TURNED = 8
"""Rows and columns that `turn` takes."""


def _turn(
    _typing_context: object,
    target: types.Array,
    _i: types.Integer,
    _target_row: types.Integer,
    source: types.Array,
    _j: types.Integer,
    _source_row: types.Integer,
) -> tuple[Any, Callable[..., Any]]:
    numbers, int32 = ir.VectorType(ir.FloatType(), TURNED), ir.IntType(32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def rows(place: int) -> list[Any]:
            array, at, step = arguments[place : place + 3]
            offsets = [builder.add(at, builder.mul(step, ir.Constant(step.type, row))) for row in range(TURNED)]
            kind = signature.args[place]
            return [
                builder.bitcast(_pointer(context, builder, kind, array, offset), numbers.as_pointer())
                for offset in offsets
            ]

        def pick(one: Any, other: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(int32, TURNED), lanes))

        found = [builder.load(row, align=4) for row in rows(3)]
        # Blocks beside the diagonal change places: of four rows and columns, then of two, then single numbers.
        block = TURNED // 2
        while block:
            for row in range(TURNED):
                if row & block:
                    continue
                upper, lower = found[row], found[row + block]
                lanes = [(lane ^ block) + TURNED if lane & block else lane for lane in range(TURNED)]
                found[row] = pick(upper, lower, lanes)
                lanes = [lane + TURNED if lane & block else lane + block for lane in range(TURNED)]
                found[row + block] = pick(upper, lower, lanes)
            block //= 2
        for vector, place in zip(found, rows(0), strict=True):
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, types.intp, source, types.intp, types.intp), generate


turn = cast("Callable[[_Floats, int, int, _Floats, int, int], None]", intrinsic(_turn))
"""``turn(target, i, target_row, source, j, source_row)`` in compiled code: write the transpose of `TURNED` rows and
columns. They stand in contiguous vectors of float32, from an entry on, with so many entries between rows. Nothing is
checked."""
