"""One attention head: its scores and its probabilities."""

import numpy as np

from flashedu.viz.figure import COLOURS, MARKERS, Picture, drawing, new_figure

LEVELS = 20  # colours of an image; more would make the picture large, not clearer


@drawing
def scores_and_probabilities(s, p):
    """Picture of S (Nq, Nk) and P (Nq, Nk) as images, one row a query, one column a key."""
    from matplotlib import colormaps

    figure, (left, right) = new_figure(1, 2, figsize=(8.6, 3.8))
    for ax, image, title, low in ((left, s, "S, scores", s.min()), (right, p, "P, probabilities", 0)):
        shown = ax.imshow(image, cmap=colormaps["cividis"].resampled(LEVELS), vmin=low, interpolation="nearest", aspect="auto")
        figure.colorbar(shown, ax=ax, shrink=0.9)
        ax.set(xlabel="key", ylabel="query")
        ax.set_title(title, fontsize=11)
        ax.grid(visible=False)
    alt = (
        f"Two images of {s.shape[0]} by {s.shape[1]}. Scores run from {s.min():.1f} to {s.max():.1f}; "
        f"probabilities are near 0 almost everywhere, the largest is {p.max():.2f}."
    )
    return Picture(
        figure, "A real head: every score, and what softmax makes of it. Each row of P sums to 1.", alt
    )


@drawing
def row_maxima(s, limit=None, limit_name=""):
    """Picture of the largest score of each row of S (Nq, Nk), beside the row's mean; `limit` is drawn as a line."""
    figure, ax = new_figure(figsize=(8, 3))
    ax.plot(s.max(axis=1), color=COLOURS["scores"], lw=1.4, label="largest score of the row")
    ax.plot(s.mean(axis=1), ":", color=COLOURS["text"], lw=1.6, label="mean score of the row")
    if limit is not None:
        ax.axhline(limit, color=COLOURS["text"], lw=1.2, ls="--", label=limit_name)
    top = int(s.max(axis=1).argmax())
    ax.plot([top], [s[top].max()], MARKERS["scores"], color=COLOURS["scores"], ms=11, ls="none", label="largest of all")
    ax.set(xlabel="query", ylabel="score")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    m = s.max(axis=1)
    return Picture(
        figure,
        "What softmax subtracts in each row of S, solid, above the mean of the row, dotted.",
        f"Row maxima run from {m.min():.1f} to {m.max():.1f}, with a median of {np.median(m):.1f}; "
        f"row means lie near {s.mean():.1f}."
        + (f" {np.mean(m > limit):.0%} of the maxima lie above {limit:.3g} ({limit_name})." if limit is not None else ""),
    )
