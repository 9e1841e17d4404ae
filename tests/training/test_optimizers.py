"""Optimisers without the compiler: they learn what PyTorch's learn."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from windrow.training.optimizers import without_compiler

STEPS = 4
KINDS: list[tuple[Any, dict[str, float]]] = [
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.01, "fused": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
]


def learn(kind: Any, options: dict[str, float]) -> tuple[list[Tensor], dict[str, Any]]:
    """Values and state after some steps; a new optimiser takes over in the middle."""
    values = [nn.Parameter(torch.arange(6.0).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    optimizer = kind(values, **options)
    for step in range(STEPS):
        if step == STEPS // 2:
            state = optimizer.state_dict()
            optimizer = kind(values, **options)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        sum((value**2).sum() * (step + 1) for value in values).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert all(value.requires_grad for value in values)
    return [value.detach() for value in values], optimizer.state_dict()


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_values_and_state_are_those_of_pytorch(kind: Any, options: dict[str, float]) -> None:
    (values, state), (expected_values, expected_state) = learn(without_compiler(kind), options), learn(kind, options)
    for value, expected in zip(values, expected_values, strict=True):
        assert torch.equal(value, expected)
    assert str(state) == str(expected_state)


def test_the_compiler_is_not_imported() -> None:
    program = (
        "import runpy, sys\n"
        f"here = runpy.run_path({__file__!r})\n"
        "for kind, options in here['KINDS']:\n    here['learn'](here['without_compiler'](kind), options)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
