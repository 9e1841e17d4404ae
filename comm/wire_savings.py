"""What shorter number formats on the wire would save a step, by the links' model, and what rounding costs.

    saved   seconds of the exchange as fp32  -  seconds of the exchange in the format
    codec   seconds that the busiest rank encodes what it sends and decodes what it gets, measured here on random rows,
            less those of the copies that fp32 takes as well

A format pays where it saves more than it costs. Both are of the exchange alone: where a pipeline hides it behind work,
neither shows. What the rounding does to a model's quality only a run can tell.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import Links
from windrow.comm.wire import Codec, CodecName, SumsName, WireOptions, make_codec

__all__ = ["FormatSaving", "predict_sum", "row_savings", "saving_rows", "sum_savings"]

Setting: TypeAlias = Literal["vectors", "gradients", "sums"]

MEASURED_BYTES = 4 << 20
"""Of float32 numbers that are encoded and decoded: more than caches near a core hold."""

REPEATS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatSaving:
    """What one format of one setting of [wire] means for a step."""

    setting: Setting
    form: CodecName | SumsName
    wire_bytes: float
    """Over all ranks, of which fp32 would take `saved_bytes` more."""
    saved_bytes: float
    saved_s: float
    """Of the slowest rank's network; negative where it takes longer."""
    codec_s: float
    """Of the busiest rank's processor."""

    @property
    def pays(self) -> bool:
        """Whether more is saved than it costs."""
        return self.saved_s > self.codec_s


def row_savings(
    setting: Literal["vectors", "gradients"], links: Links, rows: NDArray[np.float64], width: int, *, once: bool = False
) -> list[FormatSaving]:
    """Of rows that ranks send each other.

    Args:
        setting: whose formats.
        links: of the network.
        rows: float64 [n, n], rows of float32 that each rank sends each in a step; those for itself do not count.
        width: numbers of a row with a scale of its own.
        once: whether rows are encoded once for all steps, as features are, so that only decoding costs.
    """
    sent = rows * ~np.eye(links.size, dtype=bool)
    busiest = sent.sum(0).max() + (0 if once else sent.sum(1).max())
    found = []
    for form in _shorter(CodecName):
        codec = make_codec(form)
        row_bytes = codec.wire_row_bytes((width,), torch.float32)
        seconds = predict_all_to_all(links, 4 * width * sent) - predict_all_to_all(links, row_bytes * sent)
        # To nearest takes what rounding at random takes, but for its draws.
        cost = _codec_seconds(codec, (MEASURED_BYTES // 4 // width, width), encodes=not once)
        found.append(
            FormatSaving(
                setting=setting,
                form=form,
                wire_bytes=float(row_bytes * sent.sum()),
                saved_bytes=float((4 * width - row_bytes) * sent.sum()),
                saved_s=seconds,
                # A rank encodes what it sends and decodes as much: `cost` is of both.
                codec_s=cost * 4 * width * float(busiest) / (1 if once else 2),
            )
        )
    return found


def predict_sum(links: Links, numbers: int, form: SumsName) -> float:
    """Seconds until all ranks have the sum of vectors of so many float32, which travel in a format."""
    codec = WireOptions(sums=form).sums_codec()
    num_bytes = (codec or Codec()).wire_row_bytes((numbers,), torch.float32)
    return predict_all_reduce(links, num_bytes, encoded=codec is not None)


def sum_savings(links: Links, numbers: int) -> list[FormatSaving]:
    """Of a vector of so many float32 that all ranks sum, which as fp32 goes by the library's own all-reduce."""
    size = links.size
    exact, found = predict_all_reduce(links, 4 * numbers), list[FormatSaving]()
    for form in _shorter(SumsName):
        codec = WireOptions(sums=form).sums_codec()
        assert codec is not None
        num_bytes = codec.wire_row_bytes((numbers,), torch.float32)
        travels = 2 * (size - 1)
        cost = _codec_seconds(codec.for_vector(), (MEASURED_BYTES // 4,), encodes=True)
        found.append(
            FormatSaving(
                setting="sums",
                form=form,
                wire_bytes=travels * num_bytes,
                saved_bytes=travels * (4 * numbers - num_bytes),
                saved_s=exact - predict_all_reduce(links, num_bytes, encoded=True),
                # Every number is encoded once by each rank, and decoded about twice.
                codec_s=cost * 4 * numbers * 1.5,
            )
        )
    return found


def saving_rows(savings: Iterable[FormatSaving], used: WireOptions) -> list[dict[str, object]]:
    """As rows for people, `used` marked."""
    return [
        {
            "wire": f'{one.setting} = "{one.form}"',
            "MB a step": one.wire_bytes / 1e6,
            "of fp32": f"{100 * one.wire_bytes / (one.wire_bytes + one.saved_bytes):.3g} %",
            "saves ms": 1e3 * one.saved_s,
            "rounding ms": 1e3 * one.codec_s,
            "": ("pays" if one.pays else "does not pay") + (", recipe" * (getattr(used, one.setting) == one.form)),
        }
        for one in savings
        if one.wire_bytes
    ]


def _shorter(names: Any) -> Sequence[Any]:
    return [form for form in get_args(names) if form != "fp32"]


def _codec_seconds(codec: Codec, shape: tuple[int, ...], *, encodes: bool) -> float:
    """Seconds for a byte of float32: those of encoding, if asked for, and decoding, less those of as many copies."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    out, copied = torch.empty_like(values), torch.empty_like(values)
    wire = codec.encode_piece([values], 0)

    def both() -> None:
        codec.decode(codec.encode_piece([values], 0) if encodes else wire, out)

    def copies() -> None:
        for target in (out, copied) if encodes else (out,):
            target.copy_(values)

    return max(0.0, _seconds(both) - _seconds(copies)) / values.nbytes


def _seconds(run: Callable[[], None]) -> float:
    """The least of a few times: what else this machine does is not the codec's."""
    found = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return min(found[1:])
