"""What a model's outputs say about vertices, as columns of a table.

    task           columns
    single-label   prediction: the class; probability: of that class
    binary         probability: of class 1
    multi-label    probabilities: one of each class

Nothing here communicates.
"""

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.graph import Task

__all__ = ["check_finite", "prediction_columns"]


def prediction_columns(task: Task, logits: Tensor) -> dict[str, Tensor]:
    """Turn logits into predictions.

    Args:
        task: of the graph.
        logits: [n, C] on the CPU, or [n] or [n, 1] for "binary".

    Returns:
        By column: "prediction" int32 [n] is the class with the largest logit, the first of equal ones, as metrics
        count it; "probability" float32 [n]; "probabilities" float32 [n, C].
    """
    # Single precision would lose digits of a probability that is close to 1.
    exact = logits.double()
    if task == "binary":
        return {"probability": exact.reshape(-1).sigmoid().float()}
    if task == "multi-label":
        return {"probabilities": exact.sigmoid().float()}
    prediction = logits.argmax(1, keepdim=True)
    probability = exact.softmax(1).gather(1, prediction)
    return {
        "prediction": prediction.flatten().to(torch.int32),
        "probability": probability.flatten().float(),
    }


def check_finite(vertices: Tensor, logits: Tensor) -> None:
    """Refuse outputs that say nothing.

    Args:
        vertices: int64 [n], the user's ids.
        logits: [n] or [n, C].

    Raises:
        DataError: an output is NaN or infinite; names the first vertex.
    """
    lost = ~logits.isfinite().reshape(len(logits), -1).all(1)
    if bool(lost.any()):
        vertex = int(vertices[lost.nonzero()[0, 0]])
        raise DataError(
            f"the prediction for vertex {vertex} is NaN or infinite: the training diverged; predict with an earlier "
            "checkpoint (--checkpoint best), or train again with a lower learning rate"
        )
