"""Sessions of several ranks: a test that hangs is ended and named, a session that only takes long is not."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 6

MANY_SHORT_TESTS_THEN_ONE_THAT_HANGS_ON_RANK_1 = f"""
import time
import pytest
from windrow.comm.launcher import launched_rank

@pytest.mark.parallel(2)
@pytest.mark.parametrize("place", range(8))
def test_short(place):
    time.sleep({LIMIT_S} / 6)

@pytest.mark.parallel(2)
def test_meeting():
    if launched_rank() == 1:
        wait_for_ever()
    time.sleep(1000)

def wait_for_ever():
    time.sleep(1000)
"""


def test_a_hanging_rank_ends_its_session_which_may_take_longer_than_a_test(tmp_path, capfd):
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools" / "run_tests.py")
    run_tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_tests)
    file = tmp_path / "test_here.py"
    file.write_text(MANY_SHORT_TESTS_THEN_ONE_THAT_HANGS_ON_RANK_1)
    options = ["-v", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "no:cacheprovider", str(file)]
    status, _ = run_tests.run_session(2, options, limit_s=LIMIT_S)
    captured = capfd.readouterr()
    assert status != 0
    assert len(re.findall(r"test_short.* PASSED", captured.out)) == 2 * 8
    hung = re.findall(r"(rank-\d) has been at test_here.py::test_meeting for", captured.out)
    assert hung == ["rank-0", "rank-1"]
    places = re.findall(r"line \d+ in (wait_for_ever|test_meeting)$", captured.out + captured.err, re.MULTILINE)
    assert sorted(places) == ["test_meeting", "test_meeting", "wait_for_ever"]
