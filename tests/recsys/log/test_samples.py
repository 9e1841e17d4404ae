"""windrow.recsys.log.prepare: samples against a slow mapping, row by row."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.options import FeatureOptions, LogOptions
from windrow.recsys.log.sample_mapper import SampleMapper
from windrow.recsys.log.vocabulary import Vocabulary, hash_values, table_key

WORDS = ["a", "b", "c"]
FEATURES = {
    "word": FeatureOptions(),
    "hashed": FeatureOptions(ids="hash", rows=7),
    "row": FeatureOptions(ids="rows", rows=9),
    "list": FeatureOptions(multi_hot=True, max_length=3, weights="w", table="word"),
}
LOG = LogOptions(
    paths=(Path("a"),), format="csv", features=FEATURES, dense=("x", "y"), dense_transform="log1p", time="t"
)
TEXT = st.sampled_from([*WORDS, "new", None])
ROW = st.tuples(
    st.sampled_from([0.0, 1.0]),
    st.tuples(*[st.sampled_from([-1.0, 0.0, 2.5, None])] * 2),
    TEXT,
    TEXT,
    st.integers(0, 8),
    st.lists(TEXT, max_size=5) | st.none(),
)


def slow_word(text: str | None) -> int:
    return 0 if text is None else WORDS.index(text) + 2 if text in WORDS else 1


def slow_hash(text: str | None) -> int:
    return 0 if text is None else 1 + int(hash_values(pa.array([text]), table_key("hashed"))[0]) % 6


def slow_dense(value: float | None) -> float:
    return 0.0 if value is None else float(np.float32(math.log1p(max(value, 0))))


@given(st.lists(st.lists(ROW, min_size=1, max_size=8), min_size=1, max_size=3))
def test_samples_and_counts(batches: list[list[tuple[Any, ...]]]) -> None:
    mapper = SampleMapper(LOG, {"word": Vocabulary.of(pa.array(WORDS))}, {})
    rows = [row for batch in batches for row in batch]
    found = [sample for batch in batches for sample in mapper.map(staged(batch), "train").to_pylist()]
    expected = []
    for label, dense, word, hashed, number, values in rows:
        kept = (values or [])[-3:]
        weights = [float(place) for place in range(len(values or []))][-3:]
        expected.append(
            {
                "label": label,
                "dense": [slow_dense(value) for value in dense],
                "word": slow_word(word),
                "hashed": slow_hash(hashed),
                "row": number,
                "list": [slow_word(text) for text in kept],
                "list.weights": weights,
                "time": 7,
            }
        )
    assert found == expected
    counts = {name: of_split["train"] for name, of_split in mapper.counts.items()}
    lists = [sample["list"] for sample in expected]
    assert counts == {
        "word": numbers(
            rows, missing=[row[2] for row in rows].count(None), unseen=[row[2] for row in rows].count("new")
        ),
        "hashed": numbers(rows, missing=[row[3] for row in rows].count(None)),
        "row": numbers(rows),
        "list": {
            "missing": lists.count([]),
            "unseen": sum(ids.count(1) for ids in lists),
            "truncated": sum(max(len(row[5] or []) - 3, 0) for row in rows),
            "ids": sum(map(len, lists)),
        },
    }
    assert mapper.positives == {"train": [sum(row[0] == 1 for row in rows)]}
    assert mapper.dense_missing == {
        name: [row[1][place] for row in rows].count(None) for place, name in enumerate("xy")
    }


def numbers(rows: list[Any], *, missing: int = 0, unseen: int = 0) -> dict[str, int]:
    return {"missing": missing, "unseen": unseen, "truncated": 0, "ids": len(rows)}


def staged(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    labels, dense, words, hashed, numbers_, lists = (list(part) for part in zip(*rows, strict=True))
    weights = [None if values is None else [float(place) for place in range(len(values))] for values in lists]
    return pa.RecordBatch.from_pydict(
        {
            "label.label": pa.array(labels, pa.float32()),
            "time": pa.array([7] * len(rows)),
            "dense.x": pa.array([pair[0] for pair in dense], pa.float64()),
            "dense.y": pa.array([pair[1] for pair in dense], pa.float64()),
            "id.word": pa.array(words, pa.string()),
            "id.hashed": pa.array(hashed, pa.string()),
            "id.row": pa.array(numbers_, pa.int64()),
            "id.list": pa.array(lists, pa.list_(pa.string())),
            "weights.list": pa.array(weights, pa.list_(pa.float32())),
        }
    )


@pytest.mark.parametrize(("transform", "expected"), [("none", [-2.0, 0.0, 3.0]), ("standard", [-1.5, -0.5, 1.0])])
def test_other_transforms(transform: Any, expected: list[float]) -> None:
    log = LogOptions(paths=(Path("a"),), format="csv", dense=("x",), dense_transform=transform)
    columns = {"label.label": [0.0] * 4, "dense.x": [-2.0, 0.0, 3.0, None]}
    rows = pa.RecordBatch.from_pydict({name: pa.array(column, pa.float64()) for name, column in columns.items()})
    found = SampleMapper(log, {}, {"x": (1.0, 2.0)}).map(rows, "train")["dense"]
    assert found.to_pylist() == [[value] for value in [*expected, 0.0]]
    assert found.type == pa.list_(pa.float32(), 1)
