"""Rows that stand in another order than that of their ids: what is known of them by id is what it would be in order."""

import numpy as np
import pytest
import torch

from windrow.comm.gradients import GradientReducer
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import EmbeddingConfig, TableOptions

ROWS, DIM = 23, 8
IDS = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
FORMS = {"dense": {}, "robe": {"form": "robe", "compression": 3, "robe_block": 4}}


def make(world, plan, *, row_ids=None, **options):
    return EmbeddingCollection(
        [EmbeddingConfig(ROWS, DIM, "vertex")],
        world=world,
        plan=plan,
        optimizer=TableOptions(**{"dim": DIM, "optimizer": "adagrad", "initial_scale": 0.5, **options}),
        seed=3,
        row_ids=row_ids,
    )


def rows_of(tables, ids):
    with torch.no_grad():
        return tables.start_rows(ids).finish()


def learn(tables, ids):
    """Learn the same of the same ids; rank 0 asks for all of them."""
    reducer = GradientReducer(tables.world, tables.replicated_parameters())
    rows = tables.start_rows(ids if tables.world.rank == 0 else ids[:0]).finish()
    reducer.start()
    (rows**2).sum().backward()
    reducer.finish()
    tables.step()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("plan", ["row_wise", "column_wise", "replicated"])
def test_ids_say_what_a_row_is(spmd, plan, form):
    def body(world):
        plain, ordered = make(world, plan, **FORMS[form]), make(world, plan, row_ids=IDS, **FORMS[form])
        places = torch.arange(world.rank, ROWS)
        found = [(rows_of(ordered, places), rows_of(plain, IDS[places]))]
        learn(plain, IDS)
        learn(ordered, torch.arange(ROWS))
        found.append((rows_of(ordered, places), rows_of(plain, IDS[places])))
        found.append((ordered.whole_table("vertex"), plain.whole_table("vertex")))
        other = make(world, "row_wise", row_ids=IDS.flip(0), **FORMS[form])
        other.load_state_dict(ordered.state_dict())
        found.append((rows_of(other, ROWS - 1 - places), found[1][0]))
        ordered.move_to("row_wise")
        found.append((rows_of(ordered, places), found[1][0]))
        ordered.reset_parameters()
        found.append((rows_of(ordered, places), found[0][0]))
        return found

    for of_rank in spmd(body):
        for one, same in of_rank:
            torch.testing.assert_close(one, same)


@pytest.mark.parametrize("suffix", ["npy", "init_fn"])
def test_given_first_values_are_by_id(spmd, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("windrow.training.shard_files._ROWS_AT_ONCE", 5)
    values = torch.arange(ROWS * DIM, dtype=torch.float32).view(ROWS, DIM)
    np.save(tmp_path / "vertex.npy", values.numpy())

    def body(world):
        if suffix == "npy":
            tables = make(world, "row_wise", row_ids=IDS, pretrained={"vertex": tmp_path / "vertex.npy"})
        else:
            config = EmbeddingConfig(ROWS, DIM, "vertex", init_fn=lambda table: table.copy_(values))
            tables = EmbeddingCollection([config], world=world, plan="row_wise", row_ids=IDS)
        return rows_of(tables, torch.arange(ROWS))

    for rows in spmd(body):
        assert torch.equal(rows, values[IDS])


def test_no_rank_holds_a_table_in_order():
    tables = make(None, "row_wise", row_ids=IDS)
    with pytest.raises(Exception, match="state_dict"):
        tables.embeddings["vertex"]
