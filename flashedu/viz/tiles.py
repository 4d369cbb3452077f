"""The square of scores cut into tiles: which are computed, in which order, and what SRAM holds meanwhile."""

import numpy as np

from flashedu.viz.figure import COLOURS, MARKERS, SHADE, Picture, drawing, new_figure

SKIPPED, DIAGONAL, FULL = range(3)
KINDS = {FULL: "full: no mask needed", DIAGONAL: "diagonal: masked inside", SKIPPED: "skipped: never loaded"}
EDGE = "edge of the mask"
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
    from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

    kinds = tile_kinds(n_q, n_k, block_q, block_k, causal)
    shade = (COLOURS["masked"], SHADE)
    looks = {
        FULL: {"facecolor": COLOURS["scores"], "edgecolor": "white"},
        DIAGONAL: {"facecolor": shade, "edgecolor": COLOURS["scores"], "hatch": "////"},
        SKIPPED: {"facecolor": shade, "edgecolor": "white"},
    }
    figure, axes = new_figure(figsize=(7.4 if causal else 5.2, min(3.9, 1.3 + 4.2 * n_q / n_k)))
    number, told = 0, True
    for (row, column), kind in np.ndenumerate(kinds):
        i, j = row * block_q, column * block_k
        height, width = min(block_q, n_q - i), min(block_k, n_k - j)
        axes.add_patch(Rectangle((j, i), width, height, linewidth=1, **looks[kind]))
        if kind == SKIPPED:
            continue
        number += 1
        if kinds.size > 36 or min(height / min(block_q, n_q), width / min(block_k, n_k)) < 0.3:  # no room
            told = False
            continue
        back = {"facecolor": COLOURS["scores"], "edgecolor": "none", "pad": 1.5}
        axes.text(j + width / 2, i + height / 2, number, ha="center", va="center", fontsize=10, color="white", fontweight="bold", bbox=back)
    if not causal and kinds.size <= 36:  # the inner loop
        y, ends = 0.15 * min(block_q, n_q), {"shrinkA": 0, "shrinkB": 0}
        start, end = (0.25 * min(block_k, n_k), y), (n_k - 0.25 * min(block_k, n_k), y)
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="->", mutation_scale=14, color="white", lw=1.5, **ends))
    counts = {kind: int((kinds == kind).sum()) for kind in KINDS if (kinds == kind).any()}
    if causal:
        axes.plot((n_k - n_q, n_k), (0, n_q), color=COLOURS["text"], linewidth=1.5)
        handles = [Patch(label=f"{count:,} {KINDS[kind]}", **looks[kind]) for kind, count in counts.items()]
        handles.append(Line2D([], [], color=COLOURS["text"], linewidth=1.5, label=EDGE))
        figure.legend(handles=handles, loc="outside right center", fontsize=10)
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
    words = ", ".join(f"{count} {KINDS[kind].split(':')[0]}" for kind, count in counts.items()) if causal else f"{kinds.size} tiles"
    order = "" if kinds.size > 36 else " The numbers are the order of visits" + ("." if told else "; the smallest tiles have no room for theirs.")
    return Picture(
        figure,
        f"Scores of {n_q} queries and {n_k} keys in tiles of {block_q} x {block_k}{', causal' if causal else ''}: {words}.{order}",
        f"A grid of {kinds.shape[0]} x {kinds.shape[1]} tiles, visited row by row"
        + (f": {words}. The edge of the mask falls to the bottom right corner." if causal else "."),
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
