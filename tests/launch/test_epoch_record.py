"""windrow.launch.epoch_record: a line of JSON and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.epoch_record import EpochRecord

NUMBERS = st.floats(allow_nan=False)


@given(
    st.builds(
        EpochRecord,
        epoch=st.integers(1),
        step=st.integers(0),
        loss=NUMBERS,
        learning_rate=NUMBERS,
        metric=st.sampled_from(["roc_auc", "accuracy"]),
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


@pytest.mark.parametrize("line", ["", "{", '{"epoch": 1}', '{"epoch": 1, "colour": "red"}'])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error for broken JSON, ours for other fields
        EpochRecord.from_json(line)
