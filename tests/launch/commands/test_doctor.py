"""windrow.launch.commands.doctor: what is printed, and the exit status."""

import pytest

from windrow.launch import doctor
from windrow.launch.cli import main
from windrow.launch.doctor import Finding, State


@pytest.mark.parametrize(
    ("state", "essential", "status"),
    [("ok", True, 0), ("missing", False, 0), ("warning", True, 0), ("missing", True, 1)],
)
def test_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: State, essential: bool, status: int
) -> None:
    findings = [Finding(what="PyTorch", state=state, found="2.9", essential=essential)]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert main(["doctor"]) == status
    assert capsys.readouterr().out.split() == [state, "PyTorch", "2.9"]
