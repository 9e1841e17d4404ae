"""windrow.launch.commands.doctor: what is printed, and the exit status."""

import pytest

from windrow.launch import doctor
from windrow.launch.cli import main


@pytest.mark.parametrize(("works", "status"), [(True, 0), (False, 1)])
def test_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool, status: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _: ("ok  PyTorch", works))
    assert main(["doctor"]) == status
    assert capsys.readouterr().out == "ok  PyTorch\n"
