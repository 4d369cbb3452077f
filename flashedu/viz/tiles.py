"""The square of scores cut into tiles: which are computed, what is in SRAM meanwhile, and how many bytes travel."""
import numpy as np

from flashedu.viz.figure import COLOURS, MARKERS, Picture, new_figure

SKIPPED, DIAGONAL, FULL = range(3)
KINDS = {
    FULL: ("full", COLOURS["sram"], ""),
    DIAGONAL: ("diagonal: needs a mask", COLOURS["key"], "///"),
    SKIPPED: ("skipped", "white", "xx"),
}


def tile_kinds(n_q, n_k, block_q, block_k, causal=False):
    """SKIPPED, DIAGONAL or FULL for each tile, (query tiles, key tiles); the mask is the bottom-right one."""
    i0, j0 = np.arange(0, n_q, block_q)[:, None], np.arange(0, n_k, block_k)
    last_row, last_key = np.minimum(i0 + block_q, n_q) - 1, np.minimum(j0 + block_k, n_k) - 1
    if not causal:
        return np.full((len(i0), len(j0)), FULL)
    offset = n_k - n_q
    return np.where(j0 > last_row + offset, SKIPPED, np.where(last_key > i0 + offset, DIAGONAL, FULL))


def tile_map(n_q, n_k, block_q, block_k, causal=False):
    """The (Nq, Nk) square of scores, tile by tile, numbered in the order in which queries-outside visits them."""
    from matplotlib.patches import Patch, Rectangle

    kinds = tile_kinds(n_q, n_k, block_q, block_k, causal)
    figure, axes = new_figure(figsize=(6.6, 4.2))
    number = 0
    for (row, column), kind in np.ndenumerate(kinds):
        i, j = row * block_q, column * block_k
        height, width = min(block_q, n_q - i), min(block_k, n_k - j)
        _, colour, hatch = KINDS[kind]
        axes.add_patch(Rectangle((j, i), width, height, facecolor=colour, edgecolor=COLOURS["masked"], hatch=hatch, linewidth=0.8,
                                 alpha=0.35 if kind == SKIPPED else 0.8))
        if kind != SKIPPED:
            number += 1
            if kinds.size <= 144:
                axes.text(j + width / 2, i + height / 2, number, ha="center", va="center", fontsize=10,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85})
    axes.set(xlim=(0, n_k), ylim=(n_q, 0), aspect="equal", xlabel="key", ylabel="query",
             xticks=range(0, n_k + 1, max(block_k, n_k // 4)), yticks=range(0, n_q + 1, max(block_q, n_q // 4)))
    axes.grid(visible=False)
    shown = [kind for kind in KINDS if (kinds == kind).any()]
    counts = {kind: int((kinds == kind).sum()) for kind in shown}
    axes.legend(handles=[Patch(facecolor=KINDS[k][1], edgecolor=COLOURS["masked"], hatch=KINDS[k][2], label=f"{counts[k]} {KINDS[k][0]}")
                         for k in shown], loc="center left", bbox_to_anchor=(1.02, 0.5))
    words = ", ".join(f"{counts[k]} {KINDS[k][0].split(':')[0]}" for k in shown)
    return Picture(
        figure,
        f"Scores of {n_q} queries and {n_k} keys in tiles of {block_q} x {block_k}{', causal' if causal else ''}: {words}. The numbers are the order of visits.",
        f"A square of {kinds.shape[0]} x {kinds.shape[1]} tiles, visited row by row: {words}.",
    )


def occupancy(events):
    """SRAM bytes held after each event, by name: a dict name -> array; what was allocated is called "tile"."""
    names = list(dict.fromkeys(event.name for event in events if event.kind != "store"))
    change = {name: np.zeros(len(events), dtype=int) for name in names}
    for t, event in enumerate(events):
        if event.kind != "store":
            change[event.name][t] = -event.size_bytes if event.kind == "free" else event.size_bytes
    return {name: np.cumsum(change[name]) for name in names}


def residency(machine):
    """What SRAM holds over a run on a `Machine`: stacked by array, event after event, under its capacity."""
    colours = {"q": COLOURS["query"], "k": COLOURS["key"], "v": COLOURS["value"], "tile": COLOURS["output"]}
    hatches = {"q": "", "k": "///", "v": "\\\\\\", "tile": ".."}
    labels = {"tile": "own tiles: S, output, m, l"}
    held = occupancy(machine.events)
    figure, axes = new_figure(figsize=(8, 3.4))
    edges, floor = np.arange(len(machine.events) + 1), np.zeros(len(machine.events))
    for name in sorted(held, key=lambda name: "q tile k v".split().index(name)):
        level = floor + held[name]
        axes.stairs(level, edges, baseline=floor, fill=True, facecolor=colours[name], edgecolor="white", linewidth=0,
                    hatch=hatches[name], label=labels.get(name, f"{name} tile"))
        floor = level
    axes.axhline(machine.sram_bytes, color=COLOURS["text"], linestyle="--", linewidth=1.4)
    axes.text(0, machine.sram_bytes, "capacity", va="bottom", fontsize=10)
    stores = [t for t, event in enumerate(machine.events) if event.kind == "store"]
    axes.plot([t + 0.5 for t in stores], floor[stores] + 0.04 * machine.sram_bytes, MARKERS["hbm"], color=COLOURS["hbm"], markersize=7, label="store to HBM")
    axes.set(xlabel="event (load, alloc, store, free)", ylabel="SRAM held (bytes)", xlim=(0, len(machine.events)), ylim=(0, 1.12 * machine.sram_bytes))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=10)
    return Picture(
        figure,
        f"SRAM during one run: {len(machine.events)} events, at most {machine.sram_peak:,} of {machine.sram_bytes:,} bytes held, "
        f"{len(stores)} stores. What a query tile owns stays while key and value tiles come and go.",
        f"Stacked SRAM contents over {len(machine.events)} events; peak {machine.sram_peak} bytes, {len(stores)} stores to HBM.",
    )


def traffic_against_block(block_q, closed_form, measured, naive_bytes, least_bytes):
    """HBM traffic against the height of the query tile, with naive attention above and the arrays' own size below.

    Takes block sizes, the closed form's bytes for each, `measured` (a dict block_q -> list of bytes counted on
    `machine`, one for each block_k tried), and two levels to compare with.
    """
    figure, axes = new_figure(figsize=(7.5, 3.7))
    axes.plot(block_q, closed_form, color=COLOURS["sram"], label="closed form")
    points = [(b, value) for b, values in measured.items() for value in values]
    axes.plot(*zip(*points, strict=True), "o", color=COLOURS["text"], fillstyle="none", markersize=9, linestyle="none", label="counted by machine")
    axes.axhline(naive_bytes, color=COLOURS["hbm"], linestyle="--", label="naive: S and P through HBM")
    axes.axhline(least_bytes, color=COLOURS["output"], linestyle=":", label="q, k, v, o, lse once")
    axes.set(xscale="log", yscale="log", xlabel="block_q (rows of a query tile)", ylabel="HBM traffic (bytes)")
    axes.set_xticks(block_q, [str(b) for b in block_q])
    axes.minorticks_off()
    axes.legend(loc="upper right", fontsize=10)
    axes.set_ylim(top=8 * naive_bytes)
    return Picture(
        figure,
        "HBM traffic of one head against the query tile's height. The keys' block size does not appear: all its points coincide.",
        f"Traffic falls in proportion to block_q from {closed_form[0]:,} to {closed_form[-1]:,} bytes; naive moves {naive_bytes:,}, the arrays alone are {least_bytes:,}.",
    )


def bytes_by_level(rows):
    """Horizontal bars of bytes on a logarithmic axis. Takes a list of (label, bytes, kind), kind "hbm" or "sram"."""
    figure, axes = new_figure(figsize=(8, 0.9 + 0.5 * len(rows)))
    for y, (_, size, kind) in enumerate(rows):
        axes.barh(y, size, color=COLOURS[kind], hatch={"hbm": "", "sram": "///"}[kind], edgecolor="white", height=0.62)
        axes.text(size * 1.06, y, f"{size / 1e9:.2f} GB", va="center", fontsize=10)
    axes.set(xscale="log", xlabel="bytes (logarithmic)", yticks=range(len(rows)), yticklabels=[label for label, _, _ in rows], ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlim(min(size for _, size, _ in rows) / 3, max(size for _, size, _ in rows) * 4)
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        "Bytes of one attention layer, level by level: solid bars are HBM, hatched bars are what the multiprocessors take from the level above it.",
        "; ".join(f"{label}: {size / 1e9:.2f} GB" for label, size, _ in rows) + ".",
    )


def intensity_against_block(block_q, intensity, ridges, naive_intensity, counted):
    """FLOP per byte against block_q, with the ridges (a dict name -> FLOP per byte) that hide the memory.

    `naive_intensity` is three kernels' value, `counted` what hardware counters saw at HBM.
    """
    figure, axes = new_figure(figsize=(7.5, 3.9))
    axes.plot(block_q, intensity, marker="o", color=COLOURS["sram"], label="tiled, every load from HBM")
    axes.axhline(naive_intensity, color=COLOURS["hbm"], linestyle=":", label=f"naive: {naive_intensity:.0f}")
    axes.axhline(counted, color=COLOURS["output"], linestyle="-.", label=f"flash on an H200, counted at HBM: {counted:,.0f}")
    for (name, ridge), style in zip(ridges.items(), ((0, (5, 2)), (0, (2, 2)), (0, (8, 2))), strict=False):
        axes.axhline(ridge, color=COLOURS["text"], linestyle=style, linewidth=1.2, label=f"ridge of {name}: {ridge:.0f}")
    axes.set(xscale="log", yscale="log", xlabel="block_q (rows of a query tile)", ylabel="FLOP per HBM byte")
    axes.set_xticks(block_q, [str(b) for b in block_q])
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=10)
    return Picture(
        figure,
        "Arithmetic intensity of one layer. Below a ridge, memory is the limit; above it, arithmetic.",
        f"Tiled intensity rises from {intensity[0]:.0f} to {intensity[-1]:.0f}; naive {naive_intensity:.0f}; counted at HBM {counted:.0f}; ridges "
        + ", ".join(f"{name} {ridge:.0f}" for name, ridge in ridges.items()) + ".",
    )
