"""Numbers as people read them."""

__all__ = ["byte_size", "count", "duration"]

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNT_UNITS = ("", "k", "M", "G", "T")


def byte_size(num_bytes: float) -> str:
    """A number of bytes with a binary unit: ``1.5 MiB``."""
    return _scaled(num_bytes, 1024.0, BYTE_UNITS, " ")


def count(number: float) -> str:
    """A count with a decimal unit and three digits: ``12.3k``."""
    return _scaled(number, 1000.0, COUNT_UNITS, "")


def duration(seconds: float) -> str:
    """A time span: ``8.25 s`` below a minute, ``3:07`` below an hour, else ``2:03:07``."""
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _scaled(number: float, base: float, units: tuple[str, ...], gap: str) -> str:
    power = 0
    while power < len(units) - 1 and abs(number) >= 999.5:
        number /= base
        power += 1
    text = f"{number:.0f}" if power == 0 or abs(number) >= 99.95 else f"{number:.1f}"
    return f"{text}{gap}{units[power]}"
