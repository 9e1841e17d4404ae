"""Rows of values as aligned columns of text."""

from collections.abc import Mapping, Sequence

__all__ = ["table"]


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Lay out rows as text.

    Args:
        rows: dictionaries with the same keys, which become the header.

    Returns:
        Aligned columns: numbers to the right (floats with four significant digits), the rest to the left.
    """
    if not rows:
        return "(no rows)"
    header = list(rows[0])
    cells = [[_cell(row.get(name, "")) for name in header] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    numeric = [all(_is_number(row.get(name, 0)) for row in rows) for name in header]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
