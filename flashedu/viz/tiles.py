"""The square of scores cut into tiles: which are computed, what is in SRAM meanwhile, and how many bytes travel."""
import numpy as np

from flashedu.viz.figure import COLOURS, MARKERS, Picture, new_figure

SKIPPED, DIAGONAL, FULL = range(3)
KINDS = {  # label and colour; a diagonal tile also carries a stroke, a skipped one no number
    FULL: ("full", COLOURS["sram"]),
    DIAGONAL: ("diagonal: needs a mask", COLOURS["key"]),
    SKIPPED: ("skipped", "white"),
}
BANDS = {  # what a band of SRAM is called and coloured, from the bottom up
    "q": ("q", COLOURS["query"]),
    "kept": ("o, m, l", COLOURS["output"]),
    "k": ("k", COLOURS["key"]),
    "v": ("v", COLOURS["value"]),
    "scores": ("S", COLOURS["masked"]),
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
    figure, axes = new_figure(figsize=(5.2, 3.9))
    number = 0
    for (row, column), kind in np.ndenumerate(kinds):
        i, j = row * block_q, column * block_k
        i_stop, j_stop = min(i + block_q, n_q), min(j + block_k, n_k)
        axes.add_patch(Rectangle((j, i), j_stop - j, i_stop - i, facecolor=KINDS[kind][1], edgecolor="white" if kind else COLOURS["masked"], linewidth=1))
        if kind == DIAGONAL:
            axes.plot((j, j_stop), (i, i_stop), color="white", linewidth=1)
        if kind != SKIPPED:
            number += 1
            if kinds.size <= 36:
                axes.text(j + block_k * 0.3, i_stop - block_q * 0.3, number, ha="center", va="center", fontsize=10, color="white", fontweight="bold")
    axes.set(xlim=(0, n_k), ylim=(n_q, 0), aspect="equal", xlabel="key", ylabel="query",
             xticks=range(0, n_k + 1, block_k * -(-n_k // (4 * block_k))), yticks=range(0, n_q + 1, block_q * -(-n_q // (4 * block_q))))
    axes.grid(visible=False)
    counts = {kind: int((kinds == kind).sum()) for kind in KINDS if (kinds == kind).any()}
    figure.legend(handles=[Patch(facecolor=KINDS[kind][1], edgecolor=COLOURS["masked"], label=f"{count} {KINDS[kind][0]}") for kind, count in counts.items()],
                  loc="outside lower center", ncols=3, fontsize=10)
    words = ", ".join(f"{count} {KINDS[kind][0].split(':')[0]}" for kind, count in counts.items())
    order = " The numbers are the order of visits." if kinds.size <= 36 else ""
    return Picture(
        figure,
        f"Scores of {n_q} queries and {n_k} keys in tiles of {block_q} x {block_k}{', causal' if causal else ''}: {words}.{order}",
        f"A square of {kinds.shape[0]} x {kinds.shape[1]} tiles, visited row by row: {words}.",
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


def residency(machine):
    """What SRAM holds over a run on a `Machine`: stacked by array, event after event, under its capacity."""
    held = occupancy(machine.events)
    figure, axes = new_figure(figsize=(7.8, 3.5))
    edges, floor = np.arange(len(machine.events) + 1), np.zeros(len(machine.events))
    for band, levels in held.items():
        label, colour = BANDS[band]
        axes.stairs(floor + levels, edges, baseline=floor, fill=True, color=colour, linewidth=0)
        at = int(np.flatnonzero(levels == levels.max())[0])  # labelled where it is first at its largest
        axes.text(at + (7 if band == "kept" else 2), (floor + levels / 2)[at], label, color="white", fontsize=10, fontweight="bold", ha="left", va="center")
        floor = floor + levels
    axes.axhline(machine.sram_bytes, color=COLOURS["text"], linestyle="--", linewidth=1.4)
    axes.text(len(machine.events), machine.sram_bytes, f"capacity {machine.sram_bytes:,}", va="bottom", ha="right", fontsize=10)
    stores = [t for t, event in enumerate(machine.events) if event.kind == "store"]
    axes.plot([t + 0.5 for t in stores], floor[stores] + 0.04 * machine.sram_bytes, MARKERS["hbm"], color=COLOURS["hbm"], markersize=8, label="store to HBM")
    axes.set(xlabel="event (load, alloc, store, free)", ylabel="SRAM held (bytes)", xlim=(0, len(machine.events)), ylim=(0, 1.12 * machine.sram_bytes))
    axes.legend(loc="upper left")
    return Picture(
        figure,
        f"SRAM during one run: {len(machine.events)} events, at most {machine.sram_peak:,} of {machine.sram_bytes:,} bytes held, "
        f"{len(stores)} stores. From the bottom: the tile of q, the output with the row statistics, then k, v and the scores, which come and go.",
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
