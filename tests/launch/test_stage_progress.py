"""windrow.launch.terminal: units of each stage add up, and a new name begins anew."""

from windrow.launch.terminal import SilentProgress, StageProgress


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def start(self, what: str, total: int) -> None:
        self.seen.append((what, total))

    def advance(self, units: int = 1, note: str = "") -> None:
        self.seen.append(("", units))


def test_stages_follow_one_another() -> None:
    recorder = Recorder()
    stages = StageProgress(recorder)
    for stage, share in (("reading", 0.25), ("reading", 1.0), ("writing", 0.0), ("writing", 0.5)):
        stages.report(stage, share)
    assert recorder.seen == [("reading", 1000), ("", 250), ("", 750), ("writing", 1000), ("", 0), ("", 500)]
