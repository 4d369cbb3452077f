"""A row of scores that arrives block by block, and what becomes of its running maximum, its sum and its repairs."""

import numpy as np

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure


@drawing
def running_row(scores, block_size, history):
    """Four things on one axis of keys: the scores, their running maximum, the correction factor, and the running sum.

    Takes one row of scores (N,), the block size and `history`: for each block (m, alpha, kept, added), the maximum
    after it, the factor applied to the old sum, and the two parts of the new one, l = kept + added.
    """
    m, alpha, kept, added = np.array(history, dtype=float).T
    edges = np.minimum(np.arange(len(m) + 1) * block_size, len(scores)) - 0.5
    centres, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges) * 0.55
    figure, (top, middle, bottom) = new_figure(3, 1, figsize=(7.5, 5.6), sharex=True, height_ratios=(5, 3, 4))
    top.plot(scores, "s", color=COLOURS["scores"], markersize=4, label="score of one key")
    top.stairs(m, edges, baseline=None, color=COLOURS["query"], linewidth=2.5, label="running maximum m")
    top.set_ylabel("score")
    top.legend(loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=2)
    middle.bar(centres, alpha, widths, color=COLOURS["query"])
    for x, a in zip(centres, alpha, strict=True):
        middle.text(x, a + 0.06, f"{a:.2f}", ha="center", fontsize=10)
    middle.set(ylim=(0, 1.35), ylabel="factor\nexp(m_old - m)")
    bottom.bar(centres, kept, widths, color=COLOURS["output"], label="kept: old sum times factor")
    bottom.bar(
        centres,
        added,
        widths,
        bottom=kept,
        color="white",
        edgecolor=COLOURS["output"],
        linewidth=2,
        label="added by this block",
    )
    bottom.set(
        ylabel="running sum l", xlabel="key, in the order of arrival", ylim=(0, 1.45 * (kept + added).max())
    )
    bottom.legend(loc="upper center", ncols=2)
    for axes in (top, middle, bottom):
        axes.grid(axis="x", visible=False)
        for edge in edges[1:-1]:
            axes.axvline(edge, color=COLOURS["masked"], linewidth=0.6, linestyle=":")
    rises = ", ".join(str(b + 1) for b in np.flatnonzero(alpha < 1) if b > 0) or "none"
    return Picture(
        figure,
        f"One row of {len(scores)} scores in blocks of {block_size}. Where the maximum rises, the old sum is "
        "multiplied by a factor below 1; where it does not, the factor is 1 and the sum only grows.",
        f"Scores, running maximum, correction factor and running sum over {len(m)} blocks. After the "
        f"first, the maximum rises in these blocks: {rises}. The last sum is {kept[-1] + added[-1]:.2f}.",
    )


@drawing
def moving_maxima(m, alpha, block_size, rows):
    """How the row maxima of real attention move: a few rows in detail, and the correction factor of every row.

    Takes the running maxima m (blocks, R), the correction factors alpha (blocks, R), both after each block of keys,
    and the rows to draw as lines.
    """
    blocks, n_rows = m.shape
    figure, (left, right) = new_figure(1, 2, figsize=(8.5, 3.7), width_ratios=(5, 6))
    for row, style, marker in zip(rows, ("-", "--", ":"), ("o", "s", "^"), strict=False):
        left.plot(
            np.arange(1, blocks + 1),
            m[:, row],
            style,
            marker=marker,
            markersize=5,
            color=COLOURS["query"],
            label=f"query {row}",
            drawstyle="steps-mid",
        )
    left.set(xlabel=f"blocks of {block_size} keys seen", ylabel="running maximum (score)")
    left.legend(fontsize=10)
    image = right.imshow(
        alpha[1:].T,
        aspect="auto",
        cmap="cividis",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(1.5, blocks + 0.5, n_rows - 0.5, -0.5),
    )
    right.grid(visible=False)
    right.set(xlabel=f"block of {block_size} keys", ylabel="query")
    figure.colorbar(image, ax=right, label="correction factor")
    moved = float((alpha[1:] < 1).mean())
    return Picture(
        figure,
        "Left: the running maximum of some queries. Right: the factor with which each block after the first repairs "
        "each query's sums; bright (1) means that the maximum did not move.",
        f"Running maxima and a map of {n_rows} queries by {blocks - 1} blocks; {moved:.0%} of the factors are below 1.",
    )
