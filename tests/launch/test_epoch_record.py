"""windrow.launch.epoch_record: a line of JSON and back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.epoch_record import EpochRecord, best_record

NUMBERS = st.floats(allow_nan=False)


@given(
    st.builds(
        EpochRecord,
        epoch=st.integers(1),
        step=st.integers(0),
        loss=NUMBERS,
        learning_rate=NUMBERS,
        metric=st.sampled_from(["roc_auc", "accuracy"]),
        higher_is_better=st.booleans(),
        figures=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
        validation=st.none() | NUMBERS,
        test=st.none() | NUMBERS,
        seconds=NUMBERS,
        stage_seconds=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
        rows_fetched=st.integers(0),
        bytes_fetched=st.integers(0),
    )
)
def test_round_trip(record: EpochRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert EpochRecord.from_json(line) == record


@pytest.mark.parametrize(
    ("higher", "values", "best"),
    [
        (True, [0.5, 0.7, None, 0.7, math.nan], 2),
        (False, [math.nan, 0.7, 0.5, None, 0.5], 3),
        (True, [math.nan, None], None),
        (True, [-0.5, 0.0], 2),
    ],
)
def test_the_best_epoch(higher: bool, values: list[float | None], best: int | None) -> None:
    records = [
        EpochRecord(
            epoch=epoch,
            step=epoch,
            loss=0.1,
            learning_rate=0.1,
            metric="m",
            higher_is_better=higher,
            validation=value,
            seconds=1.0,
        )
        for epoch, value in enumerate(values, start=1)
    ]
    found = best_record(records)
    assert (found.epoch if found else None) == best


@pytest.mark.parametrize("line", ["", "{", '{"epoch": 1}', '{"epoch": 1, "colour": "red"}'])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error for broken JSON, ours for other fields
        EpochRecord.from_json(line)
