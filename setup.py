"""Compute the package list, so that a new subpackage cannot be forgotten; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = [
    name
    for name in ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
    if Path(name).is_dir()
]
SUBPACKAGES = [f"windrow.{folder}.{sub}" for folder in FOLDERS for sub in find_packages(folder)]
setup(
    packages=[f"windrow.{folder}" for folder in FOLDERS] + SUBPACKAGES,
    package_dir={f"windrow.{folder}": folder for folder in FOLDERS},
)
