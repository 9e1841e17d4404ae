"""One door for every format on disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.graph import Graph
from windrow.gnn.readers.edge_list import read_edge_list_and_names
from windrow.gnn.readers.libraries import read_dgl
from windrow.gnn.readers.metis_file import read_metis
from windrow.gnn.readers.npz import read_npz
from windrow.gnn.readers.ogb_folder import read_ogb_folder
from windrow.gnn.readers.options import TABLE_ENDINGS, GraphOptions
from windrow.gnn.readers.typed_folder import is_typed_folder, read_typed_folder
from windrow.gnn.vertex_data import standardise_features

__all__ = ["check_fitting", "fitting", "format_of", "read_graph"]

READERS: dict[str, tuple[Callable[[GraphOptions], Graph], tuple[str, ...]]] = {
    "npz": (read_npz, (".npz",)),
    "edge-list": (lambda options: read_edge_list_and_names(options)[0], TABLE_ENDINGS),
    "metis": (read_metis, (".graph", ".metis")),
    "ogb": (read_ogb_folder, ()),
    "dgl": (read_dgl, (".dgl", ".bin")),
    "typed": (read_typed_folder, ()),
}
"""What reads each format, and the endings of its files."""

ONLY_OF = {
    "split": ("npz", "dgl"),
    "split_name": ("ogb",),
    "first_vertex_id": ("npz",),
    "edge_list": ("edge-list", "typed"),
}
"""Options that some formats alone have."""


def read_graph(options: GraphOptions) -> Graph:
    """Read a graph from disk.

    Returns:
        A validated graph, its features standardised as asked; where it has labels, it can be trained on.

    Raises:
        DataError: the path is missing or the data breaks a law; the message names file and place.
        RecipeError: the format is unknown or an option does not fit it.
    """
    if not Path(options.path).exists():
        raise DataError(f"{options.path}: no such file or folder; correct the path.")
    form = format_of(options)
    check_fitting(options)
    try:
        graph = READERS[form][0](options)
    except DataError as error:
        if options.path in str(error):
            raise
        raise DataError(f"{options.path}: {error}") from error
    if graph.features is None:
        return graph
    if graph.types is None:
        return replace(graph, feature_scaling=standardise_features(graph.features, options.standardise))
    scalings = [
        standardise_features(rows, options.standardise) if len(rows) else None
        for rows in graph.features.split([one.number for one in graph.types.vertices.values()])
    ]
    if options.standardise != "standard":
        return graph
    # Of what is not there nothing is known: it would become 0.
    none = torch.stack([torch.zeros(graph.features.shape[1]), torch.full(graph.features.shape[1:], torch.inf)]).double()
    return replace(graph, feature_scaling=torch.stack([none if one is None else one for one in scalings]))


def format_of(options: GraphOptions) -> str:
    """Settle the format, by the file's ending where it is "auto"; a pickle is refused by DataError."""
    if options.format != "auto":
        return options.format
    path = Path(options.path)
    if path.is_dir():
        return "typed" if is_typed_folder(path) else "ogb"
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if ending in (".pt", ".pth", ".pkl", ".pickle"):
        raise DataError(
            f"{path}: a {ending} file is a pickle, and loading one can run any code, so it is not opened. Load it "
            "yourself where you trust it and pass the object to from_pyg or from_dgl, or save its arrays "
            "with numpy.savez."
        )
    for name, (_, endings) in READERS.items():
        if ending in endings:
            return name
    raise RecipeError(
        f"{path}: the ending {ending!r} does not tell the format; set format to 'npz', 'edge-list', 'metis', 'ogb', "
        "'dgl' or 'typed'."
    )


def check_fitting(options: GraphOptions) -> None:
    """Refuse what files of this format do not have, see `ONLY_OF`: RecipeError."""
    for name in _foreign(options):
        raise RecipeError(
            f"graph.{name} = {getattr(options, name)!r} is for files in {' and '.join(ONLY_OF[name])}, but "
            f"{options.path} is in {format_of(options)}: leave it out"
        )


def fitting(options: GraphOptions) -> GraphOptions:
    """The same without what files of this format do not have, see `ONLY_OF`."""
    plain = GraphOptions(path=options.path)
    return replace(options, **{name: getattr(plain, name) for name in _foreign(options)})


def _foreign(options: GraphOptions) -> list[str]:
    """Options that are set, and that files of this format do not have."""
    form, plain = format_of(options), GraphOptions(path=options.path)
    return [
        name for name, forms in ONLY_OF.items() if form not in forms and getattr(options, name) != getattr(plain, name)
    ]
