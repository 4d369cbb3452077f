"""How the running maxima of real attention move while the keys arrive block by block."""

import numpy as np

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure


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
