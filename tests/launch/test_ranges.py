"""The range of every setting that has one: a value just outside is refused by its name, whatever class it is in."""

import math
from typing import Any

import pytest

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import RecipeError
from windrow.comm.links import NetworkDescription
from windrow.comm.wire import WireOptions
from windrow.gnn.evaluation import EvaluationOptions
from windrow.gnn.models import ModelOptions as GNNOptions
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.task import TrainingOptions as GraphTrainingOptions
from windrow.gnn.vertex_data import SplitOptions
from windrow.launch.rank_process import RunOptions
from windrow.partition.options import PartitionOptions
from windrow.partition.tables.planners import PlanOptions
from windrow.recsys.batches.interactions import InteractionOptions
from windrow.recsys.batches.transforms import TransformOptions
from windrow.recsys.evaluation import RecommendationEvaluationOptions
from windrow.recsys.log.clustering.cluster_log import ClusterOptions
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.tables.options import TableOptions, TableOverrides
from windrow.recsys.task import TrainingOptions as LogTrainingOptions
from windrow.training.fit import FitOptions
from windrow.training.schedule import ScheduleOptions

TRAINING: dict[str, list[Any]] = {
    "epochs": [0],
    "batch_size": [0],
    "optimizer": ["adamw"],
    "learning_rate": [0.0, math.inf],
    "weight_decay": [-1.0, math.nan],
    "clip_norm": [-1.0],
    "accumulate": [0],
    "autocast": ["fp16"],
}
CHECKPOINTS: dict[str, list[Any]] = {
    "checkpoint_every_epochs": [0],
    "checkpoint_every_steps": [-1],
    "keep_checkpoints": [0],
}
TABLES: dict[str, list[Any]] = {
    "dim": [0],
    "optimizer": ["adamw"],
    "learning_rate": [0.0, math.inf],
    "eps": [0.0],
    "precision": ["bf16"],
    "initial_scale": [0.0],
    "weight_decay": [-1.0],
}
RANGES: dict[type, dict[str, list[Any]]] = {
    CacheOptions: {
        "alpha": [-0.1, math.inf, math.nan, "all"],
        "policy": ["luck"],
        "memory_gib": [-1.0, math.nan],
        "window": [-1],
        "gpu_share": [-0.1, 1.1],
    },
    ClusterOptions: {"files": [0, 100_001], "row_group_rows": [0], "memory_bytes": [(256 << 20) - 1]},
    EdgeListOptions: {"ids": ["strings"], "delimiter": ["::"], "skip_rows": [-1]},
    EvaluationOptions: {
        "metric": ["auc"],
        "method": ["guess"],
        "batch_size": [0],
        "every_epochs": [0],
        "patience_epochs": [-1],
    },
    FeatureGroup: {"mean_length": [0.9], "unchanged": [-0.1, 1.1], "shifted": [1.1], "empty": [1.1]},
    FeatureOptions: {"ids": ["names"], "rows": [0], "min_count": [0], "max_length": [0], "separator": ["", "||"]},
    FitOptions: CHECKPOINTS | {"evaluate_every": [0], "patience": [-1]},
    GNNOptions: {
        "kind": ["sage"],
        "hidden": [0],
        "num_layers": [0],
        "dropout": [-0.5, 1.0],
        "activation": ["tanh"],
        "normalise": ["batch"],
        "heads": [0],
        "gcn_normalisation": ["left"],
    },
    GraphOptions: {"path": [""], "format": ["graphml"], "split": [-1], "first_vertex_id": [-1]},
    GraphTrainingOptions: TRAINING,
    InteractionOptions: {
        "validation_fraction": [-0.1, 1.0],
        "max_history": [-1],
        "max_audience": [-1],
        "num_negatives": [0],
        "negative_exponent": [-0.5, math.nan],
    },
    LogOptions: {"paths": [[]], "format": ["xml"], "dense_transform": ["log"]},
    LogSplitOptions: {"by": ["luck"]},
    LogTrainingOptions: TRAINING
    | {"shuffle": ["all"], "shuffle_rows": [0], "reader_shards": [0], "reader_memory_bytes": [-1]},
    ModelOptions: {
        "kind": ["mlp"],
        "dropout": [-0.5, 1.0],
        "structure": ["crossed"],
        "cross_layers": [0],
        "low_rank": [0],
        "sequence_pooling": ["sum"],
        "sequence_layers": [0],
        "sequence_heads": [0],
        "sequence_positions": [0],
        "temperature": [0.0, math.inf],
    },
    NetworkDescription: {
        "nodes": [0],
        "ranks_per_node": [0],
        "latency_us": [-1.0],
        "latency_inside_us": [math.nan],
        "wire_share": [0.0, 1.5],
    },
    PartitionOptions: {
        "num_parts": [0],
        "method": ["metsi"],
        "imbalance": [-0.1, math.nan],
        "restarts": [0],
        "refine_cycles": [-1],
        "stream_passes": [0],
        "order": ["vpi"],
    },
    PipelineOptions: {"depth": [-1], "sampler_threads": [0]},
    PlanOptions: {"rank_memory_bytes": [-1], "replicate_below_bytes": [-1]},
    RecommendationEvaluationOptions: {
        "metric": ["acc"],
        "batch_size": [0],
        "k": [0],
        "every_epochs": [0],
        "patience_epochs": [-1],
    },
    RunOptions: CHECKPOINTS
    | {"seed": [-1], "backend": ["ucx"], "device": ["tpu"], "deadline_s": [0.0, math.nan], "threads": [-1]},
    SamplerOptions: {"fanouts": [[]], "order": ["none"], "storage": ["fp8"]},
    ScheduleOptions: {"kind": ["cosin"], "warmup_steps": [-1], "final_fraction": [-0.1, 1.5]},
    SessionFeature: {"rows": [0], "skew": [-1.0, math.inf]},
    SessionLogOptions: {
        "samples_per_session": [0.5],
        "concurrent_sessions": [0],
        "session_seconds": [0],
        "click_share": [0.0, 1.0],
    },
    SplitOptions: {
        "kind": ["random"],
        "train_per_class": [0],
        "validation_per_class": [-1],
        "train_fraction": [0.0, math.nan],
        "validation_fraction": [-0.1],
    },
    TableOptions: TABLES,
    TableOverrides: TABLES,
    TransformOptions: {"hash_rows": [1], "keep_first": [0], "keep_last": [0]},
    WireOptions: {"vectors": ["fp8"], "gradients": ["fp8"], "sums": ["int8"], "topology": ["star"]},
}
"""Class -> field -> values just outside of what it may be."""

ELEMENTS = [
    (EvaluationOptions, "fanouts", (5, 0)),
    (SamplerOptions, "fanouts", (5, -2)),
    (LogSplitOptions, "fractions", (1.0, -0.1, 0.1)),
    (TableOptions, "betas", (0.5, 1.0)),
    (TransformOptions, "clip", (1, -1)),
    *((ModelOptions, name, (3, 0)) for name in ("bottom", "top", "deep", "sequence_hidden", "feature_mlp")),
]
"""Lists whose second element is just outside."""


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(kind, field, value) for kind, fields in RANGES.items() for field, values in fields.items() for value in values],
)
def test_what_is_out_of_range_is_refused_by_name(kind: type, field: str, value: object) -> None:
    with pytest.raises(RecipeError) as caught:
        kind(**{field: value})
    assert any(line.startswith(f"{field} = {value!r} must be ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(("kind", "field", "values"), ELEMENTS)
def test_elements_out_of_range_are_refused_by_place(kind: type, field: str, values: tuple[object, object]) -> None:
    with pytest.raises(RecipeError) as caught:
        kind(**{field: values})
    assert str(caught.value).startswith(f"{field}[1] = {values[1]!r} must be ")
