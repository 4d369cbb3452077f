"""What sets the three versions apart: bytes against the size of SRAM, the work of each program, numbers of 8 bits."""

import numpy as np

from flashedu.hardware import KIB
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

WAYS = {  # line, marker, its filling: both versions are flash attention and have its colour, and each the mark that it has in `ladder`
    "version 1, the paper's tiles": ("-.", "X", "none"),
    "version 1, best tiles": (":", "X", "full"),
    "version 2, best tiles": ("--", "D", "full"),
}


@drawing
def gain_against_sram(sram_bytes, gains, blocks):
    """How many times fewer bytes than naive attention, against the size of SRAM: a panel for each head dimension.

    `gains` is a dict D -> way of WAYS -> one ratio for each of `sram_bytes`; `blocks` (a dict name -> bytes) marks what
    one block has on some GPUs.
    """
    figure, panels = new_figure(1, len(gains), figsize=(9.5, 4.1), sharey=True)
    sizes, told = np.asarray(sram_bytes) / KIB, []
    for axes, (d, ways) in zip(panels, gains.items(), strict=True):
        for name, ratios in ways.items():
            line, marker, filling = WAYS[name]
            axes.plot(sizes, ratios, line, marker=marker, fillstyle=filling, markersize=7, markevery=4, color=COLOURS["output"], label=name)
            told.append(f"D = {d}, {name}: {ratios[0]:.2f} to {ratios[-1]:.2f}")
        axes.axhline(1, color=COLOURS["hbm"], linewidth=1.5)
        for size in blocks.values():
            axes.axvline(size / KIB, color=COLOURS["text"], linewidth=0.8, linestyle="-.")
        axes.set(yscale="log", xlabel="SRAM (KiB)", title=f"D = {d}", ylim=(0.07, 32))
        axes.set_yticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16], ["1/8", "1/4", "1/2", "1", "2", "4", "8", "16"])
        axes.set_yticks([], minor=True)
    panels[0].set_ylabel("naive's bytes / the version's")
    panels[0].annotate("naive", (sizes[-1], 1), (0, -3), textcoords="offset points", ha="right", va="top", fontsize=10, color=COLOURS["hbm"])
    for name, size in blocks.items():  # where there is room
        panels[0].annotate(name, (size / KIB, 0.02), (-3, 0), ("data", "axes fraction"), "offset points", rotation=90, fontsize=9, ha="right", va="bottom")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return Picture(
        figure,
        "Bytes of naive attention over those of version 1 and version 2, from the closed forms. Below the line at 1 a version moves "
        "more than naive attention. Vertical lines: what one block of threads may use.",
        f"Curves that rise with SRAM, from {sizes[0]:.0f} to {sizes[-1]:.0f} KiB. " + "; ".join(told) + ".",
    )


@drawing
def program_loads(loads):
    """The work of every program, from the busiest to the idlest; takes a dict: how it was given out -> list of loads."""
    figure, axes = new_figure(figsize=(7.5, 3.5))
    told = []
    for (name, own), (colour, line) in zip(loads.items(), (("hbm", ":"), ("key", "--"), ("output", "-")), strict=False):
        longest = max(own) / np.mean(own)
        axes.step(range(1, len(own) + 1), sorted(own, reverse=True), line, where="mid", color=COLOURS[colour], label=f"{name}: longest {longest:.2f} of the mean")
        told.append(f"{name}: {min(own):,} to {max(own):,}, longest {longest:.2f} of the mean")
    axes.set(xlabel="programs, the busiest first", ylabel="tiles of keys", ylim=(0, 1.05 * max(map(max, loads.values()))), xlim=(1, None))
    axes.legend(loc="lower left", fontsize=10)
    return Picture(
        figure,
        "Tiles of keys that each program has to go through. The kernel ends when the busiest one has finished.",
        "Curves that fall from the busiest program to the idlest. " + "; ".join(told) + ".",
    )


@drawing
def number_lines(lines, limits):
    """Marks on an axis for the numbers that a format has; takes a dict: what they are -> numbers, and the axis' limits."""
    figure, axes = new_figure(figsize=(8.5, 0.8 + 0.62 * len(lines)))
    told = []
    for y, (name, numbers) in enumerate(lines.items()):
        inside = np.unique([x for x in numbers if limits[0] <= x <= limits[1]])
        axes.vlines(inside, y - 0.32, y + 0.32, color=COLOURS["text"], linewidth=1.3)
        told.append(f"{name}: {len(inside)} numbers, neighbours {np.diff(inside).min():g} to {np.diff(inside).max():g} apart")
    axes.set(yticks=range(len(lines)), yticklabels=list(lines), ylim=(len(lines) - 0.5, -0.5), xlabel="value")
    axes.set_xlim(limits[0], limits[1] + 0.005 * (limits[1] - limits[0]))  # the last mark whole
    axes.grid(visible=False)
    return Picture(
        figure,
        f"All numbers from {limits[0]:g} to {limits[1]:g} that a format has.",
        "Marks on a line. " + "; ".join(told) + ".",
    )


@drawing
def sorted_errors(errors):
    """The error of each row of the output, from the smallest to the largest; takes a dict: method -> errors of the rows."""
    figure, axes = new_figure(figsize=(7.5, 3.5))
    told = []
    for (name, own), (colour, line) in zip(errors.items(), (("hbm", "--"), ("output", "-"), ("key", ":")), strict=False):
        rank = np.arange(1, len(own) + 1) / len(own)
        axes.plot(rank, np.sort(own), line, color=COLOURS[colour], label=name)
        total = np.sqrt(np.mean(np.square(own)))
        axes.plot(1.02, total, marker="<", color=COLOURS[colour], markersize=9, clip_on=False)
        told.append(f"{name}: median {np.median(own):.1e}, largest {np.max(own):.1e}, of all rows together {total:.1e}")
    axes.set(yscale="log", xlabel="share of the rows with a smaller error", ylabel="RMS error of a row", xlim=(0, 1.02))
    axes.legend(loc="upper left")
    return Picture(
        figure,
        "Errors of the rows of the output, sorted. The marks on the right are the errors of all rows together.",
        "Rising curves. " + "; ".join(told) + ".",
    )
