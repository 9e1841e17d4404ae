"""windrow.launch.commands.groups: from the command line to groups that a recipe can have."""

import json

import pytest

from windrow.launch.cli import build_parser
from windrow.launch.recommendation_recipe import load_recommendation_recipe


def groups_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["groups", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_what_is_printed_fits_the_recipe(planted_recipes, tmp_path, capsys):
    recipe = planted_recipes["time"]
    out = tmp_path / "groups.json"
    assert groups_with(recipe, "--ranks", 2, "--rows", 2000, "--json", out) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("planted: ")
    assert "training samples looked at" in printed
    assert f"wrote {out}" in printed
    section = printed[printed.index("[deduplication]") :].split("\n\n")[0]
    pasted = tmp_path / "pasted.toml"
    text = recipe.read_text().replace('"planted', f'"{recipe.parent}/planted')
    pasted.write_text(f"{text}{section}\n")
    options = load_recommendation_recipe(pasted, ["training.shuffle=sessions"]).deduplication
    assert options.cluster
    assert options.groups == (("user",), ("cart", "sellers"), ("history",), ("tags",))
    figures = json.loads(out.read_text())
    assert figures["groups"] == [list(group) for group in options.groups]
    assert figures["figures"]["cart,sellers"]["unchanged"] == pytest.approx(0.9, abs=0.05)
    assert figures["figures"]["item"]["counted_factor"] == 1
    assert figures["mean_lengths"]["user"] == 1
