"""What a user says of tables: options with their ranges, overrides for one table, configurations."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.options import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    TableOptions,
    TableOverrides,
    check_configs,
    embedding_names,
    features_of,
    init_fn_of,
    pooling_of,
)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"per_table": {"a": TableOverrides(optimizer="adam")}, "precision": "fp16"}, "table 'a': tables.precision"),
        ({"weight_decay": 0.1, "precision": "fp16"}, "weight_decay = 0.1, which need dense fp32"),
        ({"optimizer": "adam", "precision": "fp16"}, 'does not go with optimizer = "adam"'),
    ],
)
def test_refusals_name_field_value_and_cure(values, said):
    with pytest.raises(RecipeError, match=said):
        TableOptions(**values)


def test_a_table_takes_what_is_not_said_of_it_from_all():
    options = TableOptions(
        dim=16,
        learning_rate=0.1,
        per_table={"a": TableOverrides(dim=8, precision="fp16"), "b": TableOverrides(initial_scale=1.0)},
    )
    assert options.of("a") == TableOptions(dim=8, learning_rate=0.1, precision="fp16")
    assert options.of("c") == TableOptions(dim=16, learning_rate=0.1)
    assert options.of_one_batch("b") == options.of_one_batch("c") != options.of_one_batch("a")
    assert set(options.only(["b", "c"]).per_table) == {"b"}


def table(name="a", rows=5, dim=8, features=(), **options):
    return EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=list(features), **options
    )


def test_a_table_without_features_is_looked_up_by_its_own_name():
    assert table().feature_names == ["a"]
    assert features_of(EmbeddingConfig(name="b", num_embeddings=1, embedding_dim=4)) == ["b"]


def test_a_feature_of_several_tables_is_named_with_its_table():
    tables = [table("a", features=["x", "y"]), table("b", features=["y", "z"])]
    assert embedding_names(tables) == [["x", "y@a"], ["y@b", "z"]]


def test_torchrec_objects_are_understood():
    from torchrec.modules import embedding_configs as theirs

    config = theirs.EmbeddingBagConfig(
        name="a", num_embeddings=5, embedding_dim=8, feature_names=["x"], pooling=theirs.PoolingType.MEAN
    )
    check_configs([config], pooled=True)
    assert pooling_of(config) == "MEAN" == pooling_of(table(pooling=PoolingType.MEAN))
    assert pooling_of(EmbeddingConfig(name="b", num_embeddings=1, embedding_dim=4)) == "SUM"


def test_first_values_that_torchrec_would_make_are_made_here_but_for_the_usual_ones():
    from torchrec.modules import embedding_configs as theirs

    def chosen(**options):
        return init_fn_of(theirs.EmbeddingBagConfig(name="a", num_embeddings=7, embedding_dim=3, **options))

    assert chosen() is None is init_fn_of(table())
    assert chosen(init_fn=torch.nn.init.ones_) is torch.nn.init.ones_
    assert chosen(weight_init_min=2.0, weight_init_max=3.0).keywords == {"a": 2.0, "b": 3.0}


@pytest.mark.parametrize(
    ("field", "value", "message"), [("need_pos", True, "weights"), ("data_type", "FP16", "precision")]
)
def test_torchrec_options_that_mean_something_else_here_are_refused(field, value, message):
    from torchrec.modules import embedding_configs as theirs

    value = theirs.DataType.FP16 if field == "data_type" else value
    config = theirs.EmbeddingBagConfig(
        name="a", num_embeddings=5, embedding_dim=8, feature_names=["x"], **{field: value}
    )
    with pytest.raises(RecipeError, match=message):
        check_configs([config], pooled=True)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "at least one table"),
        ([table(), table()], "2 tables are named 'a'"),
        ([table(rows=0)], "num_embeddings = 0"),
        ([table(dim=0)], "embedding_dim = 0: at least 1"),
        ([table(features=["x", "x"])], "a feature twice"),
    ],
)
def test_what_no_collection_can_be_made_of(tables, message):
    with pytest.raises(RecipeError, match=message):
        check_configs(tables, pooled=True)
