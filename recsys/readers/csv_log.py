"""Logs in text with a header line: commas or tabs, plain or compressed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from windrow.comm.errors import DataError
from windrow.recsys.prefetch import prefetch
from windrow.recsys.readers.raw_block import RawBlock, TextType
from windrow.recsys.readers.text_blocks import BLOCK_BYTES, TextBlock, text_blocks

__all__ = ["CSVLog"]

PARSE_BYTES = 1 << 20
"""What one of Arrow's threads parses at a time."""


class CSVLog:
    """Reads CSV and TSV files, each with a header line of its own. A field must not hold a line end.

    Args:
        files: tabs separate the fields of ``.tsv`` and ``.tsv.gz``, commas those of others.
        columns: columns to read, and what their fields are; empty fields are null. Others are passed over. A block
            in which some field is not what its column should be comes as text, all columns of it.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Mapping[str, TextType], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = dict(columns)
        self._block_bytes = block_bytes

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        blocks = text_blocks(
            self._files, rank=rank, size=size, block_bytes=self._block_bytes, has_header=True
        )
        for header, block in prefetch(blocks):
            names = _names(header, block.file)
            yield from self._parse(block, names)

    def _parse(
        self, block: TextBlock, names: tuple[str, ...], *, all_text: bool = False
    ) -> Iterator[RawBlock]:
        import pyarrow as pa
        from pyarrow import csv

        wanted = [name for name in self._columns if name in names]
        types: Mapping[str, TextType] = {} if all_text else self._columns
        # Without a column to include, Arrow would read all of them.
        included = wanted or [names[0]]
        convert = csv.ConvertOptions(
            column_types={name: pa.type_for_alias(types.get(name, "string")) for name in included},
            include_columns=included,
            null_values=[""],
            strings_can_be_null=True,
        )
        at_a_time = len(block.data) if _may_have_long_line(block.data) else PARSE_BYTES
        read = csv.ReadOptions(column_names=list(names), block_size=at_a_time)
        parse = csv.ParseOptions(delimiter=_delimiter(block.file))
        try:
            table = csv.read_csv(
                pa.BufferReader(block.data), read_options=read, parse_options=parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            if not all_text:
                # Read as text, the block is refused where its columns are needed as numbers: by line and value.
                yield from self._parse(block, names, all_text=True)
                return
            last = block.first_line + block.num_lines - 1
            raise DataError(
                f"{block.file}, lines {block.first_line} to {last}: {error}. Correct the line (rows of this message "
                f"are counted from line {block.first_line}); every line needs the {len(names)} fields of the header"
            ) from error
        first = block.first_line
        for batch in table.select(wanted or included).to_batches():
            yield RawBlock(
                batch=batch,
                file=block.file,
                columns_in_file=names,
                unit="line",
                first=first,
                file_share=block.file_share,
            )
            first += batch.num_rows


def _names(header: bytes, file: Path) -> tuple[str, ...]:
    try:
        text = header.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, line 1: the header is no UTF-8 ({error}): convert the file") from error
    import csv

    fields = next(csv.reader([text], delimiter=_delimiter(file)), [])
    repeated = {name for name in fields if fields.count(name) > 1 and name}
    if repeated:
        raise DataError(f"{file}, line 1: the header names {sorted(repeated)} twice; rename one of each")
    # An unnamed column (pandas writes one for its index) gets a name that no recipe has.
    return tuple(name or f"unnamed {position}" for position, name in enumerate(fields))


def _delimiter(file: Path) -> str:
    endings = [suffix for suffix in file.suffixes if suffix != ".gz"]
    return "\t" if endings[-1:] == [".tsv"] else ","


def _may_have_long_line(lines: bytes) -> bool:
    """Whether some line may be longer than `PARSE_BYTES`, which Arrow refuses if it parses no more at a time.

    Such a line covers a whole one of the pieces of half that length, so that few bytes have to be looked at.
    """
    half = PARSE_BYTES // 2
    return any(lines.find(b"\n", start, start + half) < 0 for start in range(0, len(lines) - half + 1, half))
