"""Recommendation models: click logs, embedding tables spread over ranks, DLRM and its relatives.

What a program of one's own needs is here; the modules hold the rest. torchrec and FBGEMM are imported when tables are
made, not before.
"""

from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.evaluation import ClickEvaluator, RecommendationEvaluationOptions
from windrow.recsys.exporting import export
from windrow.recsys.log.co_occurrences import CoOccurrences, co_occurrences
from windrow.recsys.log.options import FeatureOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare, prepare_rows
from windrow.recsys.log.store import LogStore
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.recommender import Recommender
from windrow.recsys.replan import Replan
from windrow.recsys.serving import ServedModel, load
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.choose import choose_forms, with_forms
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, PoolingType, TableOptions, TableOverrides
from windrow.recsys.task import ClickTask, RecommendationTask, TrainingOptions

__all__ = [
    "Batch",
    "BatchReader",
    "ClickEvaluator",
    "ClickModel",
    "ClickTask",
    "CoOccurrences",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FeatureOptions",
    "LogSplitOptions",
    "LogStore",
    "ModelOptions",
    "PoolingType",
    "RecommendationEvaluationOptions",
    "RecommendationTask",
    "Recommender",
    "Replan",
    "ServedModel",
    "TableOptions",
    "TableOverrides",
    "TrainingOptions",
    "build_model",
    "choose_forms",
    "co_occurrences",
    "export",
    "load",
    "prepare",
    "prepare_rows",
    "table_specs",
    "with_forms",
]
