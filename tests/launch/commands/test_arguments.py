"""windrow.launch.commands.arguments: what several commands ask in the same way."""

import argparse

import pytest

from windrow.launch.commands.arguments import add_overrides, byte_count


def test_settings_come_in_the_order_in_which_they_were_given() -> None:
    parser = argparse.ArgumentParser()
    add_overrides(parser, example="a.b=1")
    assert parser.parse_args([]).overrides == []
    assert parser.parse_args(["--set", "a.b=1", "--set", "a.c=2"]).overrides == ["a.b=1", "a.c=2"]
    assert "for example a.b=1;" in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("text", "number"), [("2GiB", 2 << 30), ("0.5 MiB", 1 << 19), ("1000", 1000), ("3KiB", 3072), (" 1TiB", 1 << 40)]
)
def test_bytes_have_binary_units(text: str, number: int) -> None:
    assert byte_count(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 GiBs", "1e3"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of bytes, such as 2GiB"):
        byte_count(text)
