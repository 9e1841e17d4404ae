"""TorchRec's classes and ours, told apart by their imports alone: the same assertions hold for both."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding_bag

import windrow.recsys
from windrow.comm.errors import RecipeError
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys import table_specs
from windrow.recsys.batches.deduplication.ikjt import deduplicate
from windrow.recsys.tables.options import TableOptions


@pytest.fixture(autouse=True)
def torchrec_draws_from_the_global_generator():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture(params=["torchrec", "windrow"])
def library(request) -> SimpleNamespace:
    if request.param == "windrow":
        return windrow.recsys
    return torchrecs()


def torchrecs() -> SimpleNamespace:
    from torchrec.modules import embedding_configs, embedding_modules

    return SimpleNamespace(**{**vars(embedding_configs), **vars(embedding_modules)})


def batch(device=None, *, weighted=False):
    """3 samples: cart [4 1] [] [1], and item [2] [0] [3 3 0]."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor.from_offsets_sync(
        keys=["cart", "item"],
        values=torch.tensor([4, 1, 1, 2, 0, 3, 3, 0], device=device),
        offsets=torch.tensor([0, 2, 2, 3, 4, 5, 8], device=device),
        weights=torch.tensor([0.5, 2, 1, 3, 1, 0.5, 1, 2], device=device) if weighted else None,
    )


def bag_tables(library, **item):
    return [
        library.EmbeddingBagConfig(name="goods", num_embeddings=5, embedding_dim=3, feature_names=["cart", "item"]),
        library.EmbeddingBagConfig(name="extra", num_embeddings=6, embedding_dim=4, feature_names=["item"], **item),
    ]


def row_tables(library, dim=5):
    return [
        library.EmbeddingConfig(name="goods", num_embeddings=5, embedding_dim=dim, feature_names=["cart", "item"]),
        library.EmbeddingConfig(name="extra", num_embeddings=6, embedding_dim=dim, feature_names=["item"]),
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_are_pooled_under_the_names_of_features_and_tables(library, weighted):
    pooling = library.PoolingType.SUM if weighted else library.PoolingType.MEAN
    bags = library.EmbeddingBagCollection(bag_tables(library, pooling=pooling), weighted)
    found = bags(batch(weighted=weighted))
    assert found.keys() == ["cart", "item@goods", "item@extra"]
    assert found.offset_per_key() == [0, 3, 6, 10]
    for key, feature, table, mode in (
        ("cart", "cart", "goods", "sum"),
        ("item@goods", "item", "goods", "sum"),
        ("item@extra", "item", "extra", "sum" if weighted else "mean"),
    ):
        ids, weight = batch(weighted=weighted)[feature], bags.embedding_bags[table].weight
        factors = ids.weights_or_none()
        expected = embedding_bag(
            ids.values(), weight, ids.offsets(), mode=mode, per_sample_weights=factors, include_last_offset=True
        )
        torch.testing.assert_close(found[key], expected)
    assert bags.is_weighted() is weighted
    assert [table.name for table in bags.embedding_bag_configs()] == list(bags.embedding_bags) == ["goods", "extra"]


def test_rows_of_each_id(library):
    rows = library.EmbeddingCollection(row_tables(library), torch.device("cpu"), True, True, {"row_wise": True})
    found = rows(batch())
    assert list(found) == ["cart", "item@goods", "item@extra"]
    for key, feature, table in (
        ("cart", "cart", "goods"),
        ("item@goods", "item", "goods"),
        ("item@extra", "item", "extra"),
    ):
        ids = batch()[feature].values()
        assert torch.equal(found[key].values(), rows.embeddings[table].weight[ids])
        assert torch.equal(found[key].weights(), ids)
        assert torch.equal(found[key].lengths(), batch()[feature].lengths())
    assert rows.need_indices()
    assert rows.embedding_dim() == 5
    assert rows.embedding_names_by_table() == [["cart", "item@goods"], ["item@extra"]]
    plain = library.EmbeddingCollection(row_tables(library))
    assert plain(batch())["cart"].weights_or_none() is None
    assert not plain.need_indices()


def test_names_and_dims_that_do_not_go_together(library):
    goods = bag_tables(library)[0]
    with pytest.raises(ValueError, match="goods"):
        library.EmbeddingBagCollection([goods, goods])
    same, other = row_tables(library, 5)[0], row_tables(library, 4)[1]
    with pytest.raises(ValueError, match="goods"):
        library.EmbeddingCollection([same, same])
    with pytest.raises(ValueError, match=r"embedding.dim"):
        library.EmbeddingCollection([same, other])


def test_init_fn_writes_into_the_whole_table_once(library):
    shapes = []

    def count_up(parameter):
        assert isinstance(parameter, nn.Parameter)
        shapes.append(tuple(parameter.shape))
        with torch.no_grad():
            parameter[1:] = torch.arange(parameter.numel() - 4.0).view(-1, 4)

    bags = library.EmbeddingBagCollection(bag_tables(library, init_fn=count_up))
    assert shapes == [(6, 4)]
    goods, extra = (bags.embedding_bags[name].weight.detach() for name in ("goods", "extra"))
    for weight in (goods, extra):
        weight.fill_(2)
    bags.reset_parameters()
    assert torch.equal(extra[1:], torch.arange(20.0).view(5, 4))
    assert goods.abs().max() <= 5**-0.5
    rows = library.EmbeddingCollection([library.EmbeddingConfig(3, 2, "a", init_fn=nn.init.ones_)])
    assert torch.equal(rows.embeddings["a"].weight, torch.ones(3, 2))


def test_devices(library):
    meta = torch.device("meta")
    bags = library.EmbeddingBagCollection(bag_tables(library, init_fn=pytest.fail), device=meta)
    with meta:
        also = library.EmbeddingBagCollection(bag_tables(library))
    for one in (bags, also):
        assert one.device == one.embedding_bags["goods"].weight.device == meta
        assert {key: (value.device, tuple(value.shape)) for key, value in one.state_dict().items()} == {
            "embedding_bags.goods.weight": (meta, (5, 3)),
            "embedding_bags.extra.weight": (meta, (6, 4)),
        }
        found = one(batch(meta))
        assert (found.values().device, found.values().shape) == (meta, (3, 10))
        assert found.offset_per_key() == [0, 3, 6, 10]
    assert library.EmbeddingCollection(row_tables(library), meta).embeddings["extra"].weight.device == meta
    default = library.EmbeddingBagCollection(bag_tables(library))
    assert default.device == default.embedding_bags["goods"].weight.device == torch.device("cpu")


def test_load_state_dict_says_what_does_not_fit(library):
    whole = nn.ModuleDict({"tables": library.EmbeddingBagCollection(bag_tables(library))})
    state = whole.state_dict()
    goods, extra = state
    assert (goods, extra) == ("tables.embedding_bags.goods.weight", "tables.embedding_bags.extra.weight")
    given = {goods: torch.ones(5, 3), "tables.embedding_bags.other.weight": torch.ones(1)}
    with pytest.raises(RuntimeError, match=r'(?s)Missing.*extra\.weight".*Unexpected.*other\.weight"'):
        whole.load_state_dict(given)
    missing, unexpected = whole.load_state_dict(given, strict=False)
    assert (missing, unexpected) == ([extra], ["tables.embedding_bags.other.weight"])
    assert torch.equal(whole["tables"].embedding_bags["goods"].weight, torch.ones(5, 3))
    with pytest.raises(RuntimeError, match=r"size mismatch for tables\.embedding_bags\.extra\.weight"):
        whole.load_state_dict(given | {extra: torch.ones(5, 4)}, strict=False)

    def rename(module, state_dict, prefix, *_):
        state_dict[f"{prefix}embedding_bags.extra.weight"] = state_dict.pop(f"{prefix}embedding_bags.other.weight")

    whole["tables"].register_load_state_dict_pre_hook(rename)
    whole.load_state_dict({goods: torch.zeros(5, 3), "tables.embedding_bags.other.weight": torch.ones(6, 4)})
    assert torch.equal(whole["tables"].embedding_bags["extra"].weight, torch.ones(6, 4))


# ------------------------------------------------------------------------------------- between the two, and on ranks


@pytest.mark.parametrize("planner", ["greedy_size", "row_wise"])
@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_state_goes_over_and_back_on_any_ranks(spmd, kind, planner):
    """TorchRec's tables looked up here, and tables that learnt here looked up there."""
    theirs = torchrecs()
    make = {"bags": bag_tables, "rows": row_tables}[kind]
    name = {"bags": "EmbeddingBagCollection", "rows": "EmbeddingCollection"}[kind]

    def body(world):
        tables = make(windrow.recsys)
        options = TableOptions(learning_rate=0.5)
        plan = plan_with_planner(planner, table_specs(tables, options), world.size, replicate_below_bytes=0)
        ours = getattr(windrow.recsys, name)(tables, world=world, plan=plan, optimizer=options)
        shapes = {key: value.shape for key, value in getattr(theirs, name)(make(theirs)).state_dict().items()}
        given = {key: torch.arange(shape.numel()).float().view(shape) for key, shape in shapes.items()}
        ours.load_state_dict(given)
        before = looked_up(ours)
        before.square().sum().backward()
        ours.step()
        return given, before.detach(), ours.state_dict(), looked_up(ours).detach()

    def looked_up(collection):
        found = collection(batch())
        parts = [rows.values() for rows in found.values()] if kind == "rows" else [found.values()]
        return torch.cat([part.flatten() for part in parts])

    for given, before, learnt, after in spmd(body):
        collection = getattr(theirs, name)(make(theirs))
        collection.load_state_dict(given)
        torch.testing.assert_close(before, looked_up(collection).detach())
        collection.load_state_dict(learnt)
        torch.testing.assert_close(after, looked_up(collection).detach())
        assert not torch.equal(before, after)


def test_init_fn_gives_the_same_under_every_plan(spmd):
    def body(world):
        def values(planner):
            tables = bag_tables(windrow.recsys, init_fn=nn.init.xavier_normal_)
            specs = table_specs(tables, TableOptions())
            plan = plan_with_planner(planner, specs, world.size, replicate_below_bytes=0)
            return windrow.recsys.EmbeddingBagCollection(tables, world=world, plan=plan, seed=3).state_dict()

        return values("row_wise"), values("greedy_size")

    tables = bag_tables(windrow.recsys, init_fn=nn.init.xavier_normal_)
    alone = windrow.recsys.EmbeddingBagCollection(tables, seed=3).state_dict()
    for found in spmd(body):
        for state in found:
            assert all(torch.equal(state[key], value) for key, value in alone.items())


def test_indices_of_deduplicated_features():
    rows = windrow.recsys.EmbeddingCollection(row_tables(windrow.recsys), need_indices=True, groups=[["cart", "item"]])
    found = rows(batch(), [deduplicate(batch(), ["cart", "item"])])
    assert torch.equal(found["item@extra"].weights(), batch()["item"].values())


def test_what_has_no_counterpart_is_refused():
    bags = windrow.recsys.EmbeddingBagCollection(bag_tables(windrow.recsys))
    with pytest.raises(RecipeError, match=r"torch.fx cannot trace EmbeddingBagCollection.*leaf"):
        torch.fx.symbolic_trace(bags)
    with pytest.raises(RecipeError, match="EmbeddingBagCollection cannot be scripted"):
        torch.jit.script(nn.Sequential(bags))
    meta = windrow.recsys.EmbeddingCollection(row_tables(windrow.recsys), torch.device("meta"))
    with pytest.raises(RecipeError, match="on the meta device, so it has no rows to look up"):
        meta(batch())
    with pytest.raises(RuntimeError, match="on the meta device, which holds no values"):
        meta.load_state_dict(meta.state_dict())
