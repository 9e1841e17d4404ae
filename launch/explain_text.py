"""What `windrow.launch.explain` found, as text for a terminal."""

from windrow.launch.explain import Explanation, SizeEstimate
from windrow.launch.formatting import byte_size, count
from windrow.launch.recipe import Recipe
from windrow.launch.text_table import table

__all__ = ["describe_explanation"]


def describe_explanation(found: Explanation, recipe: Recipe, *, network: str, computed: str) -> str:
    """Lay out an explanation.

    Args:
        found: what is expected.
        recipe: what was explained.
        network: which network times are of; empty where none is known.
        computed: where a step's work was measured.

    Returns:
        A few lines about the job, the table of sizes, and what its marks mean.
    """
    fanouts = ", ".join(map(str, recipe.sampler.fanouts))
    head = [f"{found.num_vertices:,} vertices in {found.num_parts} parts; {found.steps:,} steps an epoch"]
    head.append(f"fanouts {fanouts}; cache policy {recipe.cache.policy}")
    head.append(
        f"an epoch needs {count(found.input_rows)} rows; a row takes {byte_size(found.row_bytes)} at home, "
        f"{byte_size(found.wire_row_bytes)} in a cache and on the wire, its id 8 B more"
    )
    if found.work is not None:
        work = found.work
        parts = f"{work.processor_s * 1e3:.3g} ms of work"
        if work.device_s:
            parts += f" of the processor and {work.device_s * 1e3:.3g} ms of the GPU"
        head.append(f"network: {network}; a step is {parts}, {computed}")
    else:
        head.append(
            "no times, since the network is not known: name one by --network FILE, or measure this machine's by\n"
            f"  mpirun -n {found.num_parts} windrow network"
        )
    body = table([_row(one, found) for one in found.sizes])
    return "\n".join([*head, "", body, "", *_notes(found, recipe)])


def _row(one: SizeEstimate, found: Explanation) -> dict[str, object]:
    # The curve begins at alpha 0, whichever sizes were asked for.
    without = found.curve[0].remote_rows
    row: dict[str, object] = {
        "alpha": f"{one.alpha:.3g}",
        "kept rows": f"{one.kept_rows:,}",
        "memory": byte_size(one.memory_bytes),
        "remote rows": count(one.remote_rows),
        "of alpha 0": f"{100 * one.remote_rows / without:.3g} %" if without else "",
        "bytes": byte_size(one.remote_bytes),
    }
    if one.time is not None:
        row |= {
            "exchange s": one.time.exchange_s,
            "no pipeline s": one.time.seconds(pipelined=False),
            "pipeline s": one.time.seconds(pipelined=True),
        }
    marks = {"knee": found.knee, "auto": found.automatic, "all": found.everything, "recipe": found.chosen}
    return row | {"": ", ".join(name for name, size in marks.items() if size.alpha == one.alpha)}


def _notes(found: Explanation, recipe: Recipe) -> list[str]:
    knee = (
        "the least alpha whose epoch is within 1 % of the shortest"
        if found.knee.time is not None
        else "a row kept beyond it saves less than the average row does"
    )
    return [
        "remote rows, bytes: asked for by all ranks together in an epoch of training; kept rows, memory: of one rank",
        f"knee    {knee}",
        f'auto    what cache.alpha = "auto" keeps with cache.memory_gib = {recipe.cache.memory_gib:g}',
        "all     every rank keeps every row, and there is no exchange",
        "recipe  what training with this recipe keeps",
    ]
