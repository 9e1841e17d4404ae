"""windrow.launch.terminal: units change where they should."""

import pytest

from windrow.launch.terminal import byte_size, count, duration


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (200 << 30, "200 GiB"),
    ],
)
def test_byte_size(num_bytes: int, text: str) -> None:
    assert byte_size(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (12345, "12.3k"), (5e20, "500000000T")]
)
def test_count(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (8.254, "8.25 s"),
        (59.99, "59.99 s"),
        (59.999, "1:00"),
        (187, "3:07"),
        (7387, "2:03:07"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
