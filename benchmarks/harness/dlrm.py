"""Tables on given ids, alone or under a click model, trained and asked step by step."""

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Stopwatch
from windrow.comm.process import usable_cores
from windrow.comm.world import World
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.build import build_model
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.recommender import Lookups, pipelined
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection

__all__ = ["ModelOnTables", "ranks_per_core", "steps_in_flight", "steps_of_tables"]

NUM_DENSE = 13
LEARNING_RATE = 0.01


def ranks_per_core(ranks: int) -> float:
    """Ranks that share a core of this machine, where emulated hosts have fewer cores than ranks; at least 1."""
    return max(ranks / usable_cores(), 1.0)


def steps_of_tables(
    collection: EmbeddingBagCollection | EmbeddingCollection, ids: KeyedJaggedTensor, world: World
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step that looks tables up and lets them learn from the sum of what is found; and one that only looks up."""
    reducer = GradientReducer(world, collection.replicated_parameters())

    def train() -> None:
        _learn(collection, ids, reducer)

    def infer() -> None:
        with torch.no_grad():
            _look_up(collection, ids)

    return train, infer


def steps_in_flight(
    collection: EmbeddingBagCollection | EmbeddingCollection,
    minibatches: Sequence[KeyedJaggedTensor],
    world: World,
    *,
    lookahead: bool,
) -> Callable[[], None]:
    """Training steps as those of `steps_of_tables`, one for each minibatch, with the next ones on their way."""
    reducer = GradientReducer(world, collection.replicated_parameters())

    def start(ids: KeyedJaggedTensor) -> Lookups:
        found: Lookups = Lookups(ids, [collection.prefetch(ids)], Stopwatch())
        return found

    def train() -> None:
        for lookups in pipelined(minibatches, start, lookahead=lookahead):
            _learn(collection, lookups.batch, reducer)

    return train


def _look_up(collection: EmbeddingBagCollection | EmbeddingCollection, ids: KeyedJaggedTensor) -> torch.Tensor:
    if isinstance(collection, EmbeddingBagCollection):
        pooled: torch.Tensor = collection(ids).values()
        return pooled
    return torch.cat([found.values() for found in collection(ids).values()])


def _learn(
    collection: EmbeddingBagCollection | EmbeddingCollection, ids: KeyedJaggedTensor, reducer: GradientReducer
) -> None:
    reducer.start()
    _look_up(collection, ids).sum().backward()
    reducer.finish()
    collection.step()


class ModelOnTables:
    """A click model of 13 dense values, as Criteo's, and ids of each table. Every rank has samples of its own.

    Args:
        collection: the tables.
        samples: of a rank's batch.
        shape: of the dense part; kind = "dlrm" wants tables of one width.
        world: the ranks; None: this one alone.
        seed: of weights, dense values and labels.
    """

    def __init__(
        self,
        collection: EmbeddingBagCollection,
        samples: int,
        *,
        shape: ModelOptions,
        world: World | None = None,
        seed: int,
    ) -> None:
        world = world or Loopback.single()
        self._collection = collection
        self._dims = dict(zip(collection.embedding_names, collection.embedding_dims, strict=True))
        self._dlrm = build_model(shape, num_dense=NUM_DENSE, pooled_dims=self._dims, seed=seed)
        self._optimizer = torch.optim.SGD(self._dlrm.parameters(), lr=LEARNING_RATE)
        self._reducer = GradientReducer(world, [*self._dlrm.parameters(), *collection.replicated_parameters()])
        draw = torch.Generator().manual_seed(seed + world.rank)
        self._dense = torch.rand(samples, NUM_DENSE, generator=draw)
        self._labels = torch.randint(0, 2, (samples,), generator=draw).float()
        self._all_samples = samples * world.size

    def outputs(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Of the samples that have these ids; the bottom is computed while vectors travel. Collective."""
        lookup = self._collection.prefetch(ids)
        lookup.start_ids()
        lookup.start_lookup()
        begun = self._dlrm.begin(self._dense)
        found: torch.Tensor = self._dlrm.finish(begun, Embeddings.of(self._collection(ids).values(), self._dims))
        return found

    def infer(self, ids: KeyedJaggedTensor) -> None:
        """Compute outputs and nothing else. Collective."""
        with torch.no_grad():
            self.outputs(ids)

    def train(self, ids: KeyedJaggedTensor) -> None:
        """Learn from a batch. Collective."""
        self._reducer.start()
        outputs = self.outputs(ids)
        (binary_cross_entropy_with_logits(outputs, self._labels, reduction="sum") / self._all_samples).backward()
        self._reducer.finish()
        self._optimizer.step()
        self._collection.step()
