"""Fixtures that every test may use."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from windrow.comm.launcher import launched_size
from windrow.comm.loopback import Loopback
from windrow.comm.random import hash_ids
from windrow.comm.world import World
from windrow.gnn.synthetic import community_graph
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.training import journal

REPOSITORY = Path(__file__).resolve().parent.parent
WRITE_PLOT = journal.write_plot

# The first example of a test may compile a loop, and a shared machine may be slow. Besides, for a longer search:
# pytest --hypothesis-profile=thorough
settings.register_profile("windrow", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("windrow")

# A shell without job control starts what is in the background with SIGINT ignored, and so is all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of PyTorch's threads until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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


@pytest.fixture(autouse=True, scope="session")
def undrawn_runs() -> Iterator[None]:
    """Drawing its curves takes longer than a run here; `drawn_runs` brings them back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "write_plot", lambda *_, **__: None)
        yield


@pytest.fixture
def drawn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test draw their curves, as they do for users."""
    monkeypatch.setattr(journal, "write_plot", WRITE_PLOT)


WORLDS = ("loopback", 1), ("loopback", 4), ("mpi", 2), ("mpi", 4)
MORE_WORLDS = {"comm": (("loopback", 2), ("mpi", 1), ("gloo", 2), ("gloo", 4)), "training": (("gloo", 2),)}
"""Of tests in some folders only: what stands above `World` and the trainer cannot tell them from the others. A module
with a WORLDS of its own runs on these instead."""

SEVERAL_RANKS = re.compile(r"\bspmd\b|\bmark\.parallel\b")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Under mpirun, leave out files without tests of several ranks: to import all takes long on each."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if launched_size() > 1 and is_test and not SEVERAL_RANKS.search(collection_path.read_text("utf-8")):
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test that takes the fixture `spmd` run on every world."""
    if "spmd" in metafunc.fixturenames:
        common = getattr(metafunc.module, "WORLDS", WORLDS)
        more = MORE_WORLDS.get(metafunc.definition.path.relative_to(REPOSITORY / "tests").parts[0], ())
        worlds = [
            pytest.param(
                (backend, size),
                id=f"{backend}-{size}",
                marks=pytest.mark.parallel(size) if backend != "loopback" else (),
            )
            for backend, size in (*common, *more)
        ]
        metafunc.parametrize("spmd", worlds, indirect=True)


@pytest.fixture
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


@pytest.fixture(scope="session")
def planted_store() -> Callable[..., Any]:
    """Prepare a log whose repeats are planted: ``planted_store(folder, order="time", num_sessions=400)``."""
    return _planted_store


PLANTED_ROWS = 1 << 20
"""Of every table of the planted log: so many that values do not come back by chance."""


@pytest.fixture(scope="session")
def planted_recipes(planted_store: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of recipes whose stores hold the planted log: in order of "time", and in that of "sessions"."""
    folders = {order: tmp_path_factory.mktemp(order) for order in ("time", "sessions")}
    for order, folder in folders.items():
        planted_store(folder, order=order)
    return {order: folder / "planted.toml" for order, folder in folders.items()}


def _planted_store(
    folder: Path,
    *,
    order: str = "time",
    num_sessions: int = 400,
    session: bool = True,
    time: bool = True,
    seed: int = 1,
) -> Any:
    """Prepare sessions of 1 to 15 samples as store ``STORE`` with recipe ``planted.toml``, all of it training split.

    From one sample of a session to the next, cart and sellers change together in one step of ten, history in one of
    five, tags in one of two, the user never, the item always. Of a history, up to 40 ids, training keeps the last 30.
    Order "time" interleaves sessions, "sessions" does not.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from windrow.launch.recommendation_recipe import load_recommendation_recipe
    from windrow.recsys.log.prepare import prepare_log

    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 16, num_sessions)
    sessions = np.repeat(np.arange(num_sessions), sizes)
    times = np.concatenate([np.sort(draw.integers(0, 100_000, size)) for size in sizes])
    first = np.r_[True, np.diff(sessions) > 0]
    shares = {"item": 1.0, "user": 0.0, "cart": 0.1, "history": 0.2, "tags": 0.5}
    versions = {name: np.cumsum(first | (draw.random(len(first)) < share)) for name, share in shares.items()}
    versions["sellers"] = versions["cart"]
    columns: dict[str, Any] = {"label": np.arange(len(first)) % 2, "price": draw.normal(size=len(first))}
    columns |= {"visit": sessions, "at": times}
    lists = {"cart": 4, "sellers": 4, "history": 20, "tags": 3}
    for place, (name, version) in enumerate(versions.items()):
        lengths = (version * 7 + place) % (2 * lists[name] + 1) if name in lists else np.ones_like(version)
        offsets = np.r_[0, np.cumsum(lengths)]
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        ids = pa.array((np.repeat(version * 31 + place, lengths) + within) * 2654435761 % PLANTED_ROWS)
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids) if name in lists else ids
    places = np.lexsort((times, sessions)) if order == "sessions" else np.argsort(times, kind="stable")
    parquet.write_table(pa.table(columns).take(pa.array(places)), folder / "planted.parquet")
    features = [
        f'[log.features.{name}]\nids = "rows"\nrows = {PLANTED_ROWS}\nmulti_hot = {str(name in lists).lower()}\n'
        for name in versions
    ]
    meanings = ('session = "visit"\n' if session else "") + ('time = "at"\n' if time else "")
    (folder / "planted.toml").write_text(
        'store = "planted"\n[log]\npaths = ["planted.parquet"]\nformat = "parquet"\ndense = ["price"]\n'
        f'{meanings}{"".join(features)}[split]\nby = "files"\n[tables]\ndim = 16\n'
        '[model]\nsequences = ["history"]\nsequence_query = "item"\n[training]\nbatch_size = 512\nreader_shards = 4\n'
        "[transforms.history]\nkeep_last = 30\n",
        encoding="utf-8",
    )
    recipe = load_recommendation_recipe(folder / "planted.toml")
    return prepare_log(recipe.store, recipe.log, recipe.split, overwrite=True)


NUM_SAMPLES = 600
NUM_ITEMS, NUM_USERS = 12, 40

SETTINGS: dict[str, dict[str, Any]] = {
    "log": {
        "paths": ["log.csv"],
        "format": "csv",
        "label": "click",
        "dense": ["age"],
        "features": {"item": {}, "user": {"ids": "hash", "rows": 64}},
    },
    "split": {"by": "hash", "fractions": [0.6, 0.2, 0.2]},
    "tables": {"dim": 8, "learning_rate": 0.1},
    "plan": {"replicate_below_bytes": 0},
    "model": {"bottom": [8], "top": [8], "dropout": 0.1},
    "training": {"epochs": 3, "batch_size": 48, "learning_rate": 0.01, "reader_shards": 4},
    "run": {"tensorboard": False, "threads": 1, "deadline_s": 60, "keep_checkpoints": 9},
}


@pytest.fixture(scope="session")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a graph of 240 vertices in three communities, and all that training needs."""
    graph = community_graph(240, 3, seed=7, num_features=6, signal=1.0)
    assert graph.features is not None
    assert graph.labels is not None
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    np.savez(
        path,
        edges=np.stack([graph.indices.numpy(), np.repeat(np.arange(240), graph.indptr.diff().numpy())], 1),
        x=graph.features.numpy(),
        y=graph.labels.numpy(),
        train=graph.train_ids.numpy(),
        val=graph.validation_ids.numpy(),
        test=graph.test_ids.numpy(),
    )
    return path


@pytest.fixture(scope="session")
def click_recipe() -> Callable[..., RecommendationRecipe]:
    """Make the recipe of a small click log: ``click_recipe(folder, tables={"dim": 4})``."""
    return _click_recipe


@pytest.fixture(scope="session")
def prepare_clicks() -> Callable[[Path], None]:
    """Write the click log, and its store, into a folder."""
    return _prepare_clicks


def _click_recipe(folder: Path, **changes: dict[str, Any]) -> RecommendationRecipe:
    sections = {name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in SETTINGS.keys() | changes.keys()}
    values = {"name": "clicks", "store": "clicks", **sections}
    return make_recommendation_recipe(values, source="clicks.toml", base=folder)


def _prepare_clicks(folder: Path) -> None:
    """Clicks that depend on the item: even ones are liked."""
    from windrow.recsys.log.prepare import prepare_log

    draws = [hash_ids(key, np.arange(NUM_SAMPLES)) for key in (1, 2, 3, 4)]
    items, users = draws[0] % NUM_ITEMS, draws[1] % NUM_USERS
    ages = draws[2] % 50
    clicks = (draws[3] % 100) < np.where(items % 2 == 0, 90, 10)
    lines = ["click,age,item,user"]
    lines += [
        f"{click:d},{age},i{item},u{user}" for click, age, item, user in zip(clicks, ages, items, users, strict=True)
    ]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    recipe = _click_recipe(folder)
    prepare_log(recipe.store, recipe.log, recipe.split, overwrite=True)


@pytest.fixture
def run_with_triton(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a process that has imported no Triton yet: ``run(program, *arguments, **environment)``."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton: pip install -r requirements/dev-cpu.txt")

    def run(program: str, *arguments: object, **environment: str) -> str:
        command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
        environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)} | environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
