"""Errors measured by what rounding allows: one line of a logarithmic axis for each method."""

import numpy as np

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

FLOOR = 1e-4  # smaller ratios, and errors of exactly zero, are drawn here


@drawing
def against_bound(ratios):
    """Where the errors of several methods sit relative to the rounding bound.

    Takes a dict: name of the method -> error / bound of every element (`Bound.errors`). For each: a thin line from the
    smallest to the largest, a thick one over the middle half, a mark at the largest.
    """
    figure, axes = new_figure(figsize=(7.5, 0.9 + 0.46 * len(ratios)))
    told = []
    for y, (name, values) in enumerate(ratios.items()):
        low, quarter, median, three_quarters, high = np.maximum(
            np.quantile(values, (0, 0.25, 0.5, 0.75, 1)), FLOOR
        )
        explained = high <= 1
        colour, marker = (COLOURS["output"], "o") if explained else (COLOURS["text"], "X")
        axes.plot((low, high), (y, y), color=colour, linewidth=1.2)
        axes.plot(
            (quarter, three_quarters), (y, y), color=colour, linewidth=7, solid_capstyle="butt", alpha=0.55
        )
        axes.plot(median, y, "|", color=COLOURS["text"], markersize=11)
        axes.plot(high, y, marker, color=colour, markersize=9)
        axes.annotate(
            f"{high:,.2f}" if explained else f"{high:,.0f}",
            (high, y),
            (9, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
        told.append(f"{name}: {high:.2g}")
    axes.axvline(1, color=COLOURS["text"], linestyle="--", linewidth=1.4)
    axes.text(1, -0.75, " what rounding allows", fontsize=10, ha="left", va="center")
    axes.set(
        xscale="log",
        yticks=range(len(ratios)),
        yticklabels=list(ratios),
        ylim=(len(ratios) - 0.4, -1.1),
        xlim=(FLOOR / 2, max(10, *(values.max() for values in ratios.values())) * 12),
        xlabel="error / bound, over all elements of the output",
    )
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        "Errors in units of the rounding bound: thin line all elements, thick line the middle half, small tick the median, mark and number "
        "the largest. A circle left of the dashed line: rounding explains every element. A cross: it does not.",
        "Largest error over bound: " + "; ".join(told) + ".",
    )
