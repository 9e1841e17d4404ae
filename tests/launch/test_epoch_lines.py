"""windrow.launch.epoch_record: lines appended, lines cut on resuming, a disk that is full."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.launch.epoch_record import EpochLines, read_lines


@dataclass(frozen=True)
class Note:
    """An entry."""

    epoch: int
    text: str = ""

    def to_json(self) -> str:
        return json.dumps([self.epoch, self.text])

    @staticmethod
    def from_json(line: str) -> "Note":
        epoch, text = json.loads(line)
        return Note(epoch, text)


@given(
    texts=st.lists(st.text(), max_size=6),
    finished=st.integers(0, 7),
    rest=st.text(alphabet='[{"1', max_size=5),
)
def test_what_is_run_again_is_forgotten(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], finished: int, rest: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / "notes.jsonl"
    notes = [Note(epoch, text) for epoch, text in enumerate(texts, start=1)]
    lines = EpochLines(path, Note.from_json)
    for number, note in enumerate(notes, start=1):
        lines.append(note)
        assert read_lines(path, Note.from_json) == notes[:number]
    lines.close()
    with path.open("a") as file:
        file.write(rest)
    again = EpochLines(path, Note.from_json, finished_epochs=finished)
    assert list(again.kept) == notes[:finished]
    again.append(Note(finished + 1, "again"))
    again.close()
    assert read_lines(path, Note.from_json) == [*notes[:finished], Note(finished + 1, "again")]


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "absent", Note.from_json) == []


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('[1, "a"]\nbroken\n[2, "b"]\n')
    with pytest.raises(StoreError, match=r"notes\.jsonl, line 2.*Remove that line"):
        EpochLines(path, Note.from_json)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_told_with_the_cure(tmp_path: Path) -> None:
    lines = EpochLines(tmp_path / "notes.jsonl", Note.from_json)
    lines._file.close()
    with Path("/dev/full").open("a", encoding="utf-8") as lines._file:
        with pytest.raises(StoreError, match=r"No space left.*go on with --resume"):
            lines.append(Note(1))
        lines.close()
