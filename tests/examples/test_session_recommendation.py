"""The Python in docs/session-recommendation.md is right: it runs, one block after the other."""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "session-recommendation.md"


def test_the_programs_run() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for program in blocks:
        exec(compile(program, str(DOCUMENT), "exec"), names)  # the document's own programs
    loss = names["loss"]
    assert isinstance(loss, Tensor)
    assert loss.item() > 0
