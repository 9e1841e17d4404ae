"""Jagged lists, from the reader to the lookup: one type for NumPy arrays and torch tensors, and what repeats in them.

A feature of five samples, with weights::

    sample     0        1        2     3        4
    lists      [7, 3]   [7, 3]   []    [7, 3]   [4]

    values     7  3  7  3  7  3  4               list i is values[offsets[i]:offsets[i + 1]]
    offsets    0  2  4  4  6  7
    weights    .5 1  .5 1  .5 1  2               one for each value; None where there are none

Held once, where samples have equal lists (and weights), it is the lists of three rows, and the row of each sample::

    jagged     values 7 3 4    offsets 0 2 2 3   [7, 3]   []   [4]
    inverse    0 0 1 0 2                         sample 3 has row 0

Several features of n samples are F * n lists, features first, samples second: so TorchRec's `KeyedJaggedTensor` has
them, which is made of these arrays and taken apart again without a copy. Held once together, they share the inverse.

Lists that shift or grow are windows into values that stand once each; so are lists that lie anywhere in a larger
array. A history of the last 3 items, and one of all items so far::

    lists      [1 2 3] [2 3 4] [2 3 4] [4 5]     [1] [1 2] [1 2 3]
    values     1 2 3 4 5                         1 2 3
    starts     0 1 1 3                           0 0 0
    lengths    3 3 3 2                           1 2 3

Nothing is checked when one is made. What comes from outside is checked once, by `check_lists` and `check_inverse`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.errors import DataError

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = [
    "Deduplicated",
    "Jagged",
    "Windows",
    "check_inverse",
    "check_lists",
    "empty_array",
    "is_compiled",
    "jagged_of",
    "keyed",
    "list_positions",
    "offsets_of_lengths",
    "pack_windows",
    "select_by_pytorch",
    "side_by_side",
]

Array = TypeVar("Array", npt.NDArray[Any], Tensor)


@dataclass(frozen=True, eq=False)
class Jagged(Generic[Array]):
    """n lists of different lengths.

    Attributes:
        values: [V, ...] what the lists hold: int64 ids, or rows of an embedding table.
        offsets: [n + 1] int32 or int64, not falling: list i is ``values[offsets[i]:offsets[i + 1]]``. The first may be
            above 0, the last below V.
        weights: [V] float32; None where values have none.
    """

    values: Array
    offsets: Array
    weights: Array | None = None

    @classmethod
    def of_lengths(cls, values: Array, lengths: Array, weights: Array | None = None) -> "Jagged[Array]":
        """Lists of [n] integer lengths, which add up to V."""
        found: Jagged[Array] = cls(values, offsets_of_lengths(lengths), weights)
        vars(found)["lengths"] = lengths
        return found

    @classmethod
    def of_single(cls, values: npt.NDArray[Any]) -> "Jagged[npt.NDArray[Any]]":
        """Lists of one value each."""
        return Jagged(values, np.arange(len(values) + 1, dtype=np.int64))

    def __len__(self) -> int:
        """n."""
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Array:
        """[n] integers."""
        found: Array = self.offsets[1:] - self.offsets[:-1]
        return found

    @cached_property
    def rows(self) -> Array:
        """[values of all lists] int64, the list that each is in."""
        if isinstance(self.offsets, Tensor):
            numbers = torch.arange(len(self), device=self.offsets.device)
            return numbers.repeat_interleave(self.lengths)
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        arrays = (self.values, self.offsets, self.weights)
        return sum(array.nbytes for array in arrays if array is not None)

    def slice(self, start: int, stop: int) -> "Jagged[Array]":
        """Lists ``start .. stop - 1``, offsets int64 from 0; values and weights are views."""
        first, end = int(self.offsets[start]), int(self.offsets[stop])
        offsets: Any = self.offsets[start : stop + 1]
        offsets = offsets.long() if isinstance(offsets, Tensor) else offsets.astype(np.int64)
        weights = None if self.weights is None else self.weights[first:end]
        return Jagged(self.values[first:end], offsets - first, weights)

    def select(self, rows: Array) -> "Jagged[Array]":
        """Copy lists in any order, each any number of times.

        Args:
            rows: [m] int64, not checked: which list comes first, second and so on.

        Returns:
            m lists, offsets int64 from 0, memory of their own. Vectors, [V, d] floating, are differentiable once, and
            their gradients are added up in the order of `rows`; on GPUs in any order.

        Cost:
            One pass over what is copied: compiled loops for CPU arrays, PyTorch's operations elsewhere.
        """
        lists: Jagged[Any] = self
        if not isinstance(rows, Tensor):
            return _selected_by_loops(lists, rows)
        if lists.values.dim() == 1 and rows.device.type == "cpu":
            return _selected_by_loops(lists.to_numpy(), rows.numpy()).to_torch()
        if lists.values.dim() == 1 or not is_compiled(lists.values):
            return select_by_pytorch(lists, rows)
        lengths = lists.lengths.long().index_select(0, rows)
        total = int(lengths.sum())
        vectors = _SelectVectors.apply(lists.values, lists.offsets.long(), rows, total)  # type: ignore[no-untyped-call]
        return Jagged.of_lengths(vectors, lengths)

    def to_numpy(self) -> "Jagged[npt.NDArray[Any]]":
        """The same arrays in NumPy's hands; no copy of what is contiguous in CPU memory."""
        lists: Jagged[Any] = self
        if isinstance(lists.values, Tensor):
            lists = self._converted(lambda tensor: tensor.detach().contiguous().numpy())
        return lists

    def to_torch(self) -> "Jagged[Tensor]":
        """The same arrays in torch's hands; no copy."""
        lists: Jagged[Any] = self
        return lists if isinstance(lists.values, Tensor) else self._converted(torch.from_numpy)

    def _converted(self, convert: Callable[[Any], Any]) -> "Jagged[Any]":
        weights = None if self.weights is None else convert(self.weights)
        found: Jagged[Any] = Jagged(convert(self.values), convert(self.offsets), weights)
        if "lengths" in vars(self):
            vars(found)["lengths"] = convert(self.lengths)
        return found


@dataclass(frozen=True, eq=False)
class Deduplicated(Generic[Array]):
    """The lists of B samples, equal ones held once.

    Attributes:
        jagged: the U distinct rows: their lists; of F features, those of the first feature first.
        inverse: [B] int64 row of each sample, 0 <= inverse < U; None where there is a row for each, in order.
        num_features: F.
    """

    jagged: Jagged[Array]
    inverse: Array | None = None
    num_features: int = 1

    @property
    def num_samples(self) -> int:
        """B."""
        return self.num_rows if self.inverse is None else len(self.inverse)

    @property
    def num_rows(self) -> int:
        """U."""
        return len(self.jagged) // self.num_features

    def expand(self) -> Jagged[Array]:
        """A list for each sample: F * B lists, as `Jagged.select` gives them; what is held where it has them."""
        inverse: Any = self.inverse
        if inverse is None:
            return self.jagged
        rows = [inverse + feature * self.num_rows for feature in range(self.num_features)]
        together: Any = torch.cat(rows) if isinstance(inverse, Tensor) else np.concatenate(rows)
        return self.jagged.select(together)


@dataclass(frozen=True, eq=False, slots=True)
class Windows(Generic[Array]):
    """n lists that lie anywhere in some values, and may overlap.

    Attributes:
        values: [V, ...].
        starts: [n] int64, where each begins.
        lengths: [n] int64.
        weights: [V] float32; None where values have none.
    """

    values: Array
    starts: Array
    lengths: Array
    weights: Array | None = None

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        arrays = (self.values, self.starts, self.lengths, self.weights)
        return sum(array.nbytes for array in arrays if array is not None)

    def to(self: "Windows[Tensor]", device: torch.device, *, non_blocking: bool = False) -> "Windows[Tensor]":
        """The same on a device; with `non_blocking` a copy to the CPU may not be there yet, as in PyTorch."""
        values, starts, lengths = (
            tensor.to(device, non_blocking=non_blocking) for tensor in (self.values, self.starts, self.lengths)
        )
        weights = None if self.weights is None else self.weights.to(device, non_blocking=non_blocking)
        return Windows(values, starts, lengths, weights)

    def expand(self, rows: Array | None = None) -> Jagged[Array]:
        """Copy each list, or what was looked up for it.

        Args:
            rows: [V, d] looked up for `values`; None for the values themselves.

        Returns:
            n lists without weights, differentiable in `rows`: gradients of windows that overlap add up.

        Raises:
            DataError: not as many rows as values.
        """
        values = self.values if rows is None else rows
        if len(values) != len(self.values):
            raise DataError(f"{len(values)} rows for {len(self.values)} packed values: give one for each")
        positions = list_positions(self.starts, self.lengths)
        if isinstance(values, Tensor):
            return Jagged.of_lengths(values.index_select(0, positions), self.lengths)
        return Jagged.of_lengths(values[positions], self.lengths)


def empty_array(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """``numpy.empty`` from Arrow's pool, which keeps what is given back: touching new memory costs most of a copy."""
    import pyarrow as pa

    flat = np.frombuffer(pa.allocate_buffer(prod(shape) * np.dtype(dtype).itemsize), dtype)
    return flat.reshape(shape)


def offsets_of_lengths(lengths: Array) -> Array:
    """[n + 1] int64: 0, then the sums of the first 1, 2, ... n of [n] integers."""
    if isinstance(lengths, Tensor):
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def jagged_of(keyed: "KeyedJaggedTensor") -> Jagged[Tensor]:
    """The lists of a container of TorchRec's, features first, samples second; nothing is copied."""
    return Jagged(keyed.values(), keyed.offsets(), keyed.weights_or_none())


def keyed(
    keys: Sequence[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None, *, num_samples: int
) -> "KeyedJaggedTensor":
    """TorchRec's container of F * B lists, those of the first key first; nothing is copied.

    Args:
        keys: F features.
        values: ids, list after list.
        lengths: [F * B] integers.
        weights: one for each id; None for none.
        num_samples: B; it would be guessed from the lengths, which fails where there is no feature or no sample.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    return KeyedJaggedTensor(keys=list(keys), values=values, weights=weights, lengths=lengths, stride=num_samples)


def side_by_side(containers: Sequence["KeyedJaggedTensor"]) -> "KeyedJaggedTensor":
    """The features of containers of the same samples in one; where any has weights, the ids of the others weigh 1."""
    weights = None
    if any(container.weights_or_none() is not None for container in containers):
        given = ((container.weights_or_none(), container.values()) for container in containers)
        weights = torch.cat([torch.ones_like(ids, dtype=torch.float32) if w is None else w for w, ids in given])
    return keyed(
        [key for container in containers for key in container.keys()],  # noqa: SIM118  # no mapping
        torch.cat([container.values() for container in containers]),
        torch.cat([container.lengths() for container in containers]),
        weights,
        num_samples=containers[0].stride(),
    )


def is_compiled(rows: Tensor) -> bool:
    """Whether compiled loops take these vectors: float32 or float64 in CPU memory, and no exported program."""
    is_plain = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
    return is_plain and not torch.compiler.is_exporting()


def _selected_by_loops(lists: Jagged[npt.NDArray[Any]], rows: npt.NDArray[np.int64]) -> Jagged[npt.NDArray[Any]]:
    from windrow.recsys.batches.jagged_kernels import copy_lists, selected_lengths

    lengths = np.empty(len(rows), lists.offsets.dtype)
    total = selected_lengths(lists.offsets, rows, lengths)

    def copied(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = empty_array((total,), column.dtype)
        copy_lists(lists.offsets, column, rows, out)
        return out

    weights = None if lists.weights is None else copied(lists.weights)
    return Jagged.of_lengths(copied(lists.values), lengths, weights)


def select_by_pytorch(lists: Jagged[Tensor], rows: Tensor) -> Jagged[Tensor]:
    """`Jagged.select` with PyTorch's operations, on any device: differentiable in the values."""
    starts = lists.offsets[:-1].index_select(0, rows)
    lengths = lists.offsets[1:].index_select(0, rows) - starts
    positions = list_positions(starts, lengths)
    weights = None if lists.weights is None else lists.weights.detach().index_select(0, positions)
    return Jagged.of_lengths(lists.values.index_select(0, positions), lengths, weights)


class _SelectVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, offsets: Tensor, rows: Tensor, total: int) -> Tensor:
        from windrow.recsys.batches.jagged_kernels import move_vectors

        ctx.save_for_backward(offsets, rows)
        ctx.shape = vectors.shape
        out = vectors.new_empty(total, vectors.shape[1])
        lists = vectors.detach().contiguous().numpy()
        move_vectors(lists, offsets.numpy(), rows.numpy(), out.numpy(), back=False)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        from windrow.recsys.batches.jagged_kernels import move_vectors

        offsets, rows = ctx.saved_tensors
        gradient = upstream.new_zeros(ctx.shape)
        samples = upstream.contiguous().numpy()
        move_vectors(gradient.numpy(), offsets.numpy(), rows.numpy(), samples, back=True)
        return gradient, None, None, None


def list_positions(starts: Array, lengths: Array) -> Array:
    """Positions of the values of lists with [n] integer starts and lengths, list after list: int64, on their device."""
    if not isinstance(lengths, Tensor):
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        places += np.arange(len(places))
        return places
    ends = lengths.long().cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    shifts = (starts.long() - ends + lengths).repeat_interleave(lengths, output_size=total)
    return torch.arange(total, device=starts.device) + shifts


def pack_windows(lists: Jagged[Tensor]) -> Windows[Tensor]:
    """Pack lists of int64 ids on the CPU, without weights, in their order.

    A list that equals the one before has its window. Any other is looked for in the last values packed: as many as it
    or the list before has, whichever is longer. Where it stands there whole, its window is the first such place. Else
    it begins at the longest beginning of it that is also the end of the packed values, and only the rest is added.
    This is the partial variant of RecD's IKJT (Zhao et al., RecD: Deduplication for End-to-End Deep Learning
    Recommendation Model Training Infrastructure, MLSys 2023, arXiv 2211.05239).

    Returns:
        Windows whose `Windows.expand` is the input.

    Cost:
        About one look at each id; up to the square of a list's length where it is nearly all one id.
    """
    from windrow.recsys.batches.jagged_kernels import pack_lists

    source = lists.to_numpy()
    lengths = source.lengths.astype(np.int64)
    packed, starts = np.empty(int(lengths.sum()), np.int64), np.empty(len(lengths), np.int64)
    total = pack_lists(source.offsets, source.values, packed, starts)
    return Windows(torch.from_numpy(packed[:total].copy()), torch.from_numpy(starts), torch.from_numpy(lengths))


def check_lists(lists: Jagged[Any], source: str, where: Callable[[int], str]) -> None:
    """Refuse lists, NumPy's or torch's, that break a law; `where` tells what the list of a number is called.

    Raises:
        DataError: an array is no vector, or of another type; offsets that do not start at 0, go down, or do not end at
            the number of values; weights of another length or type. Names the list, the value and the cure.
    """
    _check_types(lists, source)
    _check_offsets(lists, source, where)
    _check_weights(lists, source)


def _check_types(lists: Jagged[Any], source: str) -> None:
    for name, array in (("ids", lists.values), ("offsets", lists.offsets)):
        if array.ndim != 1 or str(array.dtype).removeprefix("torch.") not in ("int32", "int64"):
            raise DataError(
                f"{source}: {name} are a {array.ndim}-dimensional tensor of {array.dtype}: must be a vector of int64 "
                "or int32"
            )
    if not len(lists.offsets):
        raise DataError(f"{source}: there are no offsets: there is one more of them than lists")


def _check_offsets(lists: Jagged[Any], source: str, where: Callable[[int], str]) -> None:
    first, last = int(lists.offsets[0]), int(lists.offsets[-1])
    if first != 0:
        raise DataError(f"{source}: offsets start at {first}: must start at 0; subtract {first} from all of them")
    falls = lists.lengths < 0
    if falls.any():
        place = int(falls.nonzero()[0][0])
        raise DataError(
            f"{source}, {where(place)}: offset {int(lists.offsets[place + 1])} comes after "
            f"{int(lists.offsets[place])}: offsets must never go down"
        )
    if last != len(lists.values):
        raise DataError(
            f"{source}: offsets end at {last}, but there are {len(lists.values)} ids: the last offset must be their "
            "number"
        )


def _check_weights(lists: Jagged[Any], source: str) -> None:
    weights = lists.weights
    if weights is None:
        return
    if weights.ndim != 1 or len(weights) != len(lists.values):
        raise DataError(
            f"{source}: weights of shape {list(weights.shape)} for {len(lists.values)} ids: give one number per id, "
            "1 where a feature has no weights"
        )
    if "float" not in str(weights.dtype):
        raise DataError(f"{source}: weights are {weights.dtype}: must be float32")


def check_inverse(inverse: Tensor, *, num_unique: int, num_samples: int, name: str) -> None:
    """Refuse the inverse of a group that names rows which are not there: compiled loops would read foreign memory.

    Raises:
        DataError: it is not int64 [num_samples], or has a number that is negative or no row's.

    Cost:
        One pass; on a GPU a wait for the device.
    """
    if inverse.dim() != 1 or inverse.dtype != torch.int64:
        raise DataError(f"{name}: inverse is {inverse.dtype} of shape {list(inverse.shape)}: give int64 of shape [B]")
    if len(inverse) != num_samples:
        raise DataError(f"{name}: {len(inverse)} samples, but the batch has {num_samples}: give it one of each")
    if not len(inverse):
        return
    low, high = (int(extreme) for extreme in torch.aminmax(inverse))
    if low < 0 or high >= num_unique:
        raise DataError(f"{name}: inverse holds {low if low < 0 else high}, but there are rows 0 to {num_unique - 1}")
