"""Networks that learn how long tables take, from sets of pieces whose time was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windrow.partition.tables.cost_model import CORRECTION, ComputeModel, Design, Floats, Layers, inputs_of, roof_terms

__all__ = ["fit_compute_model", "fit_roof", "kendall_tau", "percentage_error", "split_sets"]

BODY, HEAD = (128, 32), (64,)
BATCH, LEARNING_RATE = 512, 1e-3
LEAST_STEPS = 10
"""Of an epoch: with few sets minibatches are smaller."""


def split_sets(number: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Places of sets to learn from, to stop by, and to test with: 80, 10, 10 % of them."""
    order = np.random.default_rng(seed).permutation(number)
    return tuple(np.split(order, [int(0.8 * number), int(0.9 * number)]))  # type: ignore[return-value]


def percentage_error(predicted: Floats, measured: Floats) -> float:
    """Mean of the errors, each as a share of what was measured (MAPE / 100)."""
    return float(np.mean(np.abs(predicted - measured) / measured))


def kendall_tau(predicted: Floats, measured: Floats) -> float:
    """How far two orders agree, from -1 to 1 (Kendall's tau-b)."""
    from scipy.stats import kendalltau

    return float(kendalltau(predicted, measured).statistic)


def fit_roof(sets: Sequence[Floats], seconds: Floats) -> Floats:
    """Seconds for each of `roof_terms`, and of a set at all, [8], none negative: least squares of relative errors."""
    from scipy.optimize import nnls

    terms = np.stack([np.append(roof_terms(features).sum(axis=0), 1.0) for features in sets])
    size = terms.max(axis=0)
    found, _ = nnls(terms / size / seconds[:, None], np.ones(len(seconds)))
    return np.asarray(found / size)


def fit_compute_model(
    sets: Sequence[Floats],
    seconds: Floats,
    *,
    design: Design,
    origin: Mapping[str, Any],
    seed: int = 0,
    epochs: int = 200,
    progress: Callable[[int, float], None] | None = None,
) -> ComputeModel:
    """Train a model of computation; the weights that are best on a tenth of the sets are kept.

    NeuroShard's settings (its released code): Adam, rate 0.001, minibatches of 512, mean squared error of milliseconds
    for ``published``; of the logarithm of the time over the roof for ``corrected``. The mean length of what is
    standardised is that of the sets learnt from.

    Args:
        sets: features [pieces, 22] of each set.
        seconds: [n] measured of each.
        design: see `windrow.partition.tables.cost_model`.
        origin: what is to be said of the measurements; held-out errors are added.
        seed: of first weights, order and split.
        epochs: how long; 0: ``corrected`` stays the sum of times.
        progress: called with each epoch and its error.
    """
    learn, stop, test = split_sets(len(sets), seed)
    roof = fit_roof([sets[n] for n in learn], seconds[learn]) if design == "corrected" else np.zeros(8)
    inputs = [inputs_of(design, features) for features in sets]
    seen = np.concatenate([inputs[n] for n in learn])
    mean, deviation = seen.mean(axis=0), seen.std(axis=0) + 1e-6
    most = max(map(len, sets))
    data = torch.zeros(len(sets), most, seen.shape[1])
    weights = torch.zeros(len(sets), most)
    roofs = np.zeros(len(sets))
    for number, (features, found) in enumerate(zip(sets, inputs, strict=True)):
        data[number, : len(found)] = torch.from_numpy((found - mean) / deviation).float()
        terms = roof_terms(features) @ roof[:-1]
        roofs[number] = roof[-1] + terms.sum()
        share = np.ones(len(found)) if design == "published" else terms / max(terms.sum(), 1e-30)
        weights[number, : len(found)] = torch.from_numpy(share).float()
    target = torch.from_numpy(seconds * 1e3 if design == "published" else np.log(seconds / roofs)).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = _network([seen.shape[1], *BODY], last=True)
        head = _network([BODY[-1], *HEAD, 1], last=False)
    if design == "corrected":
        nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]

    def predicted(places: Tensor) -> Tensor:
        found: Tensor = head((body(data[places]) * weights[places].unsqueeze(2)).sum(dim=1))[:, 0]
        return found if design == "published" else found.clamp(-CORRECTION, CORRECTION)

    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    places = {name: torch.from_numpy(found) for name, found in (("learn", learn), ("stop", stop))}
    batch = min(BATCH, max(len(learn) // LEAST_STEPS, 1))

    def stop_error() -> float:
        with torch.no_grad():
            return float((predicted(places["stop"]) - target[places["stop"]]).square().mean())

    # Where there is nothing to learn but noise, ``corrected`` stays the sum of times that it begins as.
    order, best, kept = torch.Generator().manual_seed(seed), stop_error(), _copied(parameters)
    for epoch in range(epochs):
        for part in places["learn"][torch.randperm(len(learn), generator=order)].split(batch):
            loss = (predicted(part) - target[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        error = stop_error()
        if error < best:
            best, kept = error, _copied(parameters)
        if progress is not None:
            progress(epoch, error)
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    scale = 1e-3 if design == "published" else 1.0
    model = ComputeModel(
        design=design,
        mean=mean,
        deviation=deviation,
        body=_layers(body, 1.0),
        head=_layers(head, scale),
        roof=roof,
        origin={},
    )
    found = model.of_sets([sets[n] for n in test])
    held_out = {
        "sets": len(sets),
        "held out: MAPE": percentage_error(found, seconds[test]),
        "held out: Kendall tau": kendall_tau(found, seconds[test]),
    }
    return replace(model, origin={**origin, **held_out})


def _network(widths: Sequence[int], *, last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def _copied(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def _layers(network: nn.Sequential, scale: float) -> Layers:
    """Its linear layers as arrays, the last one times a factor."""
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    factors = [1.0] * (len(linear) - 1) + [scale]
    return tuple(
        (
            layer.weight.detach().numpy().T.astype(np.float64) * factor,
            layer.bias.detach().numpy().astype(np.float64) * factor,
        )
        for layer, factor in zip(linear, factors, strict=True)
    )
