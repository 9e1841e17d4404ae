"""State dicts of sharded collections: whole tables under TorchRec's names, whatever the plan."""

import pytest
import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, Stopwatch
from windrow.comm.wire import WireOptions
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.task import RecommendationTask
from windrow.training.task import Setup

CASES = [
    *(("embedding_bags", kind) for kind in ("table", "row", "column", "replicated", "mixed", "rows on every rank")),
    *(("embeddings", kind) for kind in ("grid", "mixed")),
]
COLLECTIONS = {"embedding_bags": EmbeddingBagCollection, "embeddings": EmbeddingCollection}


def make(small, attribute, world=None, kind=None, **options):
    tables = small.tables if attribute == "embedding_bags" else small.equal_dims
    plan = None if kind is None else small.make_plan(kind, world.size, tables)
    return COLLECTIONS[attribute](tables, world=world, plan=plan, **options)


class Model(nn.Module):
    """Tables deep inside, beside something dense."""

    def __init__(self, tables):
        super().__init__()
        self.parts = nn.ModuleDict({"tables": tables, "top": nn.LayerNorm(2)})


def values_of(result) -> torch.Tensor:
    parts = [rows.values() for rows in result.values()] if isinstance(result, dict) else [result.values()]
    return torch.cat([part.detach().flatten() for part in parts])


@pytest.mark.parametrize(("attribute", "kind"), CASES)
def test_whole_tables_go_from_ranks_to_one_process_and_back(spmd, small, attribute, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("windrow.recsys.sharded.whole_tables._VALUES_AT_ONCE", 60)  # A few rows at a time.

    def body(world):
        trained = Model(make(small, attribute, world, kind, seed=3, optimizer=TableOptions(optimizer="adagrad")))
        state = trained.state_dict()
        batch = small.jagged(small.draw(world.rank, 5))
        expected = values_of(trained.parts["tables"](batch))
        other = Model(make(small, attribute, world, kind, seed=4))
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        assert torch.equal(values_of(other.parts["tables"](batch)), expected)
        return state, expected, small.local(trained.parts["tables"])

    results = spmd(body)
    state = results[0][0]
    held = small.assembled(local for _, _, local in results)
    assert list(state) == [
        *(f"parts.tables.{attribute}.{name}.weight" for name in ("user", "item", "tag", "tiny")),
        "parts.top.weight",
        "parts.top.bias",
    ]
    for name, weight in held.items():
        for of_rank, _, _ in results:
            assert torch.equal(of_rank[f"parts.tables.{attribute}.{name}.weight"], weight)
    torch.save(state, tmp_path / "state.pt")
    alone = Model(make(small, attribute))
    alone.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for rank, (_, expected, _) in enumerate(results):
        found = values_of(alone.parts["tables"](small.jagged(small.draw(rank, 5))))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_state_is_a_copy_in_single_precision(small, precision):
    collection = make(small, "embedding_bags", optimizer=TableOptions(precision=precision))
    state = collection.state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    before = values_of(collection(small.jagged(small.draw(0, 5))))
    for value in state.values():
        value.zero_()
    assert torch.equal(values_of(collection(small.jagged(small.draw(0, 5)))), before)


def test_ranks_hold_whole_tables_or_say_that_they_do_not(small):
    def body(world):
        collection = make(small, "embedding_bags", world, "mixed")
        assert list(collection.embedding_bags) == ["user", "item", "tag", "tiny"]
        collection.embedding_bags["tiny"].weight.fill_(0.5)
        with pytest.raises(RecipeError, match=r"table 'tag' is not whole on this rank.*state_dict\(\)"):
            collection.embedding_bags["tag"]
        with pytest.raises(KeyError):
            collection.embedding_bags["other"]
        return collection.state_dict()["embedding_bags.tiny.weight"]

    assert all(torch.equal(tiny, torch.full((2, 4), 0.5)) for tiny in Loopback.run(2, body))


def test_checkpoints_of_the_dense_part_bring_no_table_together(small):
    def body(world):
        model = Model(make(small, "embedding_bags", world, "mixed"))
        world.meter = Meter()
        task = RecommendationTask(None)
        setup = {"options": task.default_options, "seed": 0, "wire": WireOptions(), "stopwatch": Stopwatch()}
        task.attach(Setup(world=world, model=model, device=torch.device("cpu"), **setup))
        dense = task.dense_state()
        model.parts["top"].weight.data.zero_()
        task.load_dense_state(dense)
        return list(dense), world.meter.table()

    assert Loopback.run(2, body) == [(["parts.top.weight", "parts.top.bias"], {})] * 2
