"""Fixtures that every test may use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from windrow.comm.launcher import launched_size
from windrow.comm.loopback import Loopback
from windrow.comm.world import World

REPOSITORY = Path(__file__).resolve().parent.parent

# The first example of a test may compile a loop, and a shared machine may be slow.
settings.register_profile("windrow", deadline=None)
settings.load_profile("windrow")

DEADLINE_S = 60.0
"""A test that waits longer than this hangs."""


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout, where there is one."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder of extra data sets at {folder}")
    return folder


@pytest.fixture
def shared_tmp_path(tmp_path: Path) -> Path:
    """`tmp_path`, under mpirun that of rank 0 on every rank."""
    if launched_size() == 1:
        return tmp_path
    from mpi4py import MPI

    shared: Path = MPI.COMM_WORLD.bcast(tmp_path)
    return shared


@pytest.fixture(autouse=True)
def global_generators_stay_untouched() -> Iterator[None]:
    """Nothing may draw from a global generator: randomness is counter-based."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "something drew from torch's global generator"


def _worlds() -> list[Any]:
    loopback = [pytest.param(("loopback", size), id=f"loopback-{size}") for size in (1, 2, 4)]
    real = [("mpi", 1), ("mpi", 2), ("mpi", 4), ("gloo", 2), ("gloo", 4)]
    return loopback + [
        pytest.param((backend, size), id=f"{backend}-{size}", marks=pytest.mark.parallel(size))
        for backend, size in real
    ]


@pytest.fixture(params=_worlds())
def spmd(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Run the same body on every rank of every kind of world: ``spmd(body) -> what each rank returned``.

    Loopback ranks are threads of this process; the others need ``mpirun -n N pytest -m "parallel[N]"``, which
    plain pytest starts by itself.
    """
    backend, size = request.param

    def run(body: Callable[[World], Any], *, debug: bool = False) -> list[Any]:
        if backend == "loopback":
            return Loopback.run(size, body, deadline_s=DEADLINE_S, debug=debug)
        world = _open(backend, debug)
        try:
            return world.all_gather_object(body(world), stage="test result")
        finally:
            world.close()

    return run


def _open(backend: str, debug: bool) -> World:
    from windrow.comm.mpi_world import MPIWorld, mpi_rendezvous
    from windrow.comm.torch_world import TorchWorld

    if backend == "mpi":
        return MPIWorld(deadline_s=DEADLINE_S, debug=debug)
    return TorchWorld("gloo", mpi_rendezvous(), deadline_s=DEADLINE_S, debug=debug)
