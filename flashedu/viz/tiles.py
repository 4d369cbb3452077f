"""The square of scores cut into tiles: which are computed, in which order, and what SRAM holds meanwhile."""

import numpy as np

from flashedu.viz.figure import COLOURS, MARKERS, Picture, drawing, new_figure

SKIPPED, DIAGONAL, FULL = range(3)
PALE = "#d9d9d9"  # masked, as a surface
KINDS = {  # label, colour of the half below the diagonal and of the half above; a skipped tile carries no number
    FULL: ("full", COLOURS["scores"], COLOURS["scores"]),
    DIAGONAL: ("diagonal: needs a mask", COLOURS["scores"], PALE),
    SKIPPED: ("skipped", PALE, PALE),
}
BANDS = {  # what a band of SRAM is called and coloured, from the bottom up
    "q": ("q", COLOURS["query"]),
    "kept": ("o, m, l", COLOURS["output"]),
    "k": ("k", COLOURS["key"]),
    "v": ("v", COLOURS["value"]),
    "scores": ("S", COLOURS["scores"]),
}


def tile_kinds(n_q, n_k, block_q, block_k, causal=False):
    """SKIPPED, DIAGONAL or FULL for each tile, (query tiles, key tiles); the mask is the bottom-right one."""
    i0, j0 = np.arange(0, n_q, block_q)[:, None], np.arange(0, n_k, block_k)
    last_row, last_key = np.minimum(i0 + block_q, n_q) - 1, np.minimum(j0 + block_k, n_k) - 1
    if not causal:
        return np.full((len(i0), len(j0)), FULL)
    offset = n_k - n_q
    return np.where(j0 > last_row + offset, SKIPPED, np.where(last_key > i0 + offset, DIAGONAL, FULL))


@drawing
def tile_map(n_q, n_k, block_q, block_k, causal=False):
    """The (Nq, Nk) square of scores, tile by tile, numbered in the order in which queries-outside visits them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

    kinds = tile_kinds(n_q, n_k, block_q, block_k, causal)
    figure, axes = new_figure(figsize=(5.2, min(3.9, 1.3 + 4.2 * n_q / n_k)))
    number = 0
    for (row, column), kind in np.ndenumerate(kinds):
        i, j = row * block_q, column * block_k
        i_stop, j_stop = min(i + block_q, n_q), min(j + block_k, n_k)
        axes.add_patch(
            Rectangle(
                (j, i),
                j_stop - j,
                i_stop - i,
                facecolor=KINDS[kind][1],
                edgecolor="white",
                linewidth=1,
            )
        )
        if kind == DIAGONAL:
            above = [(j, i), (j_stop, i), (j_stop, i_stop)]
            axes.add_patch(Polygon(above, facecolor=KINDS[kind][2], edgecolor="white", linewidth=1))
        if kind != SKIPPED:
            number += 1
            if kinds.size <= 36:
                axes.text(
                    j + 0.3 * (j_stop - j),
                    i_stop - 0.3 * (i_stop - i),
                    number,
                    ha="center",
                    va="center",
                    fontsize=10,
                    color="white",
                    fontweight="bold",
                )
    if not causal and kinds.size <= 36:  # the inner loop
        y, ends = 0.3 * block_q, {"shrinkA": 0, "shrinkB": 0}
        start, end = (0.25 * block_k, y), (n_k - 0.25 * block_k, y)
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="->", mutation_scale=14, color="white", lw=1.5, **ends))
    axes.set(
        xlim=(0, n_k),
        ylim=(n_q, 0),
        aspect="equal",
        xlabel="key",
        ylabel="query",
        xticks=range(0, n_k + 1, block_k * -(-n_k // (4 * block_k))),
        yticks=range(0, n_q + 1, block_q * -(-n_q // (4 * block_q))),
    )
    axes.grid(visible=False)
    counts = {kind: int((kinds == kind).sum()) for kind in KINDS if (kinds == kind).any()}
    figure.legend(
        handles=[
            Line2D(
                [],
                [],
                marker="s",
                linestyle="none",
                fillstyle="bottom" if kind == DIAGONAL else "full",
                markersize=11,
                markeredgecolor=COLOURS["masked"],
                markerfacecolor=KINDS[kind][1],
                markerfacecoloralt=KINDS[kind][2],
                label=f"{count} {KINDS[kind][0]}",
            )
            for kind, count in counts.items()
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=10,
    )
    words = ", ".join(f"{count} {KINDS[kind][0].split(':')[0]}" for kind, count in counts.items())
    order = " The numbers are the order of visits." if kinds.size <= 36 else ""
    return Picture(
        figure,
        f"Scores of {n_q} queries and {n_k} keys in tiles of {block_q} x {block_k}"
        f"{', causal' if causal else ''}: {words}.{order}",
        f"A grid of {kinds.shape[0]} x {kinds.shape[1]} tiles, visited row by row: {words}.",
    )


def occupancy(events):
    """SRAM bytes held after each event, as a dict band -> array, from the events of a `Machine`.

    A loaded tile's band is its array's name. A tile of one's own is "kept" when something was stored while it was
    resident (the output and the row statistics), and "scores" otherwise.
    """
    change = {band: np.zeros(len(events), dtype=int) for band in BANDS}
    resident, stores = {}, 0  # (name, start, stop, bytes) -> [(time of arrival, stores so far)]
    for t, event in enumerate(events):
        key = (event.name, event.start, event.stop, event.size_bytes)
        if event.kind == "store":
            stores += 1
        elif event.kind == "free":
            arrived, stores_then = resident[key].pop()
            band = event.name if event.name in "qkv" else "kept" if stores > stores_then else "scores"
            change[band][arrived] += event.size_bytes
            change[band][t] -= event.size_bytes
        else:
            resident.setdefault(key, []).append((t, stores))
    for (name, *_, size_bytes), arrivals in resident.items():  # never freed
        for arrived, _ in arrivals:
            change[name if name in "qkv" else "kept"][arrived] += size_bytes
    return {band: np.cumsum(steps) for band, steps in change.items() if steps.any()}


@drawing
def residency(machine):
    """What SRAM holds over a run on a `Machine`: stacked by array, event after event, under its capacity."""
    held = occupancy(machine.events)
    figure, axes = new_figure(figsize=(7.8, 3.5))
    edges, floor = np.arange(len(machine.events) + 1), np.zeros(len(machine.events))
    for band, levels in held.items():
        label, colour = BANDS[band]
        axes.stairs(floor + levels, edges, baseline=floor, fill=True, color=colour, linewidth=0, label=label)
        floor = floor + levels
    axes.axhline(machine.sram_bytes, color=COLOURS["text"], linestyle="--", linewidth=1.4)
    axes.text(
        len(machine.events),
        machine.sram_bytes,
        f"capacity {machine.sram_bytes:,}",
        va="bottom",
        ha="right",
        fontsize=10,
    )
    stores = [t for t, event in enumerate(machine.events) if event.kind == "store"]
    axes.plot(
        [t + 0.5 for t in stores],
        floor[stores] + 0.04 * machine.sram_bytes,
        MARKERS["hbm"],
        color=COLOURS["hbm"],
        markersize=8,
        linestyle="none",
        label="store to HBM",
    )
    axes.set(
        xlabel="event (load, alloc, store, free)",
        ylabel="SRAM held (bytes)",
        xlim=(0, len(machine.events)),
        ylim=(0, 1.12 * machine.sram_bytes),
    )
    axes.legend(
        loc="center left", bbox_to_anchor=(1, 0.5), reverse=True
    )  # in the order of the stack
    return Picture(
        figure,
        f"SRAM during one run: {len(machine.events)} events, at most {machine.sram_peak:,} of {machine.sram_bytes:,} bytes "
        f"held, {len(stores)} stores. From the bottom: the tile of q, the output with the row statistics, then k, v and the "
        "scores, which come and go.",
        f"Stacked SRAM contents over {len(machine.events)} events; peak {machine.sram_peak} bytes, {len(stores)} stores "
        "to HBM.",
    )
