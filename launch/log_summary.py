"""What a prepared log holds, as tables to print."""

from collections.abc import Mapping

from windrow.launch.formatting import byte_size
from windrow.launch.text_table import table
from windrow.recsys.store import LogStore

__all__ = ["log_summary"]

TRAIN = "train"


def log_summary(store: LogStore) -> list[str]:
    """Describe a prepared log.

    Args:
        store: opened.

    Returns:
        Lines: samples and positives of each split; for each feature the rows of its table, the different values
        behind them, samples without a value and ids of unseen values in all splits, and ids per training sample;
        the size on disk.
    """
    manifest = store.manifest
    splits = [
        {
            "split": name,
            "samples": f"{entry.rows:,}",
            "positives": f"{entry.positives:,}",
            "base rate": f"{store.split(name).base_rate:.4f}",
            "files": len(entry.files),
        }
        for name, entry in manifest.splits.items()
    ]
    distinct = {
        file.name.split("/")[-1].removesuffix(".parquet"): file.rows for file in manifest.vocabularies
    }
    features = [
        {
            "feature": feature.name,
            "ids": feature.ids,
            "rows": f"{feature.rows:,}",
            "distinct": f"{distinct[feature.table]:,}" if feature.ids == "vocabulary" else "-",
            "missing": f"{_total(feature.counts, 'missing'):,}",
            "unseen": f"{_total(feature.counts, 'unseen'):,}" if feature.ids == "vocabulary" else "-",
            "ids per sample": f"{feature.mean_ids(TRAIN, manifest.splits[TRAIN].rows):.2f}",
        }
        for feature in store.features
    ]
    lines = table(splits).splitlines()
    if features:
        lines += ["", *table(features).splitlines()]
    empty = {name: missing for name, missing in manifest.dense_missing.items() if missing}
    if empty:
        lines.append(
            "missing dense values, now 0: " + ", ".join(f"{name} {n:,}" for name, n in empty.items())
        )
    lines.append(f"{byte_size(sum(file.num_bytes for file in manifest.all_files()))} in {store.path}")
    return lines


def _total(counts: Mapping[str, Mapping[str, int]], name: str) -> int:
    return sum(numbers[name] for numbers in counts.values())
