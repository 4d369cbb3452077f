"""Where flash attention does not help: curves against the number of tokens and the head dimension, and what approximations give up."""

from flashedu.viz.curves import lengths_axis
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

LOOKS = {  # the beginning of a line's label: colour, marker
    "naive": ("hbm", "v"), "flash": ("output", "^"), "decode": ("output", "P"), "FlashAttention-2": ("key", "s"), "cuDNN": ("query", "o"), "memory-efficient": ("masked", "x"), "block": ("text", "o"),
}
OTHERS = (("text", "o", "-"), ("text", "s", "--"), ("text", "D", ":"), ("text", "P", "-."))  # models, say
APPROXIMATIONS = {  # colour, marker, line; "exact" is flash attention
    "window": ("query", "s", "-"), "means of keys": ("key", "D", "--"), "linear": ("value", "P", ""), "best of its rank": ("text", "", ":"), "exact": ("output", "^", ""),
}


def _lines(axes, lines, of):
    """Draw {label: {x: y}} with a legend; one that ends in "predicted" is dashed, in "backward" dotted. Returns them in words, `of` what they are."""
    told, others = [], iter(OTHERS)
    for label, points in lines.items():
        look = next((look for name, look in LOOKS.items() if label.startswith(name)), None)
        if label.endswith("predicted"):
            colour, marker, style = "text", "", "--"
        elif look:
            colour, marker, style = *look, ":" if label.endswith("backward") else "-"
        else:
            colour, marker, style = next(others)
        axes.plot(list(points), list(points.values()), style, color=COLOURS[colour], marker=marker, markersize=7, label=label, linewidth=1.8,
                  fillstyle="none" if style == ":" else "full")
        (first, low), (last, high) = min(points.items()), max(points.items())
        told.append(f"{label}: {_said(low)} at {first:,}, {_said(high)} at {last:,}")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=10)
    return f"Curves of {of}. " + "; ".join(told) + "."


def _said(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@drawing
def against_length(lines, y_label, caption, level=None, log=False):
    """Curves over the number of tokens: {label: {n: value}}; `level` is a value that is drawn as a line across, `log` for times."""
    figure, axes = new_figure(figsize=(8.2, 3.8))
    alt = _lines(axes, lines, f"{y_label} against N")
    lengths = sorted(set().union(*lines.values()))
    lengths_axis(axes, lengths[:: 1 + len(lengths) // 12])
    if level is not None:
        axes.axhline(level, color=COLOURS["text"], linewidth=1)
    axes.set(ylabel=y_label, yscale="log" if log else "linear")
    if not log:
        axes.set_ylim(bottom=0)
    return Picture(figure, caption, alt)


@drawing
def against_head_dim(lines, y_label, caption):
    """Curves over the head dimension: {label: {D: value}}."""
    figure, axes = new_figure(figsize=(8.2, 3.8))
    alt = _lines(axes, lines, f"{y_label} against D")
    axes.set(xlabel="D, head dimension", ylabel=y_label, xticks=range(64, 257, 32))
    axes.set_ylim(bottom=0)
    return Picture(figure, caption, alt)


@drawing
def error_against_work(panels, caption):
    """The error of approximations against their FLOPs, a panel for each input.

    panels: {input: ({method of APPROXIMATIONS: [(FLOPs / exact FLOPs, relative error), ...]}, the error of the mean value)}.
    """
    figure, row = new_figure(1, len(panels), figsize=(9.5, 4.2), sharey=True)
    told = []
    for axes, (name, (methods, mean)) in zip(row, panels.items(), strict=True):
        for method, points in methods.items():
            colour, marker, style = APPROXIMATIONS[method]
            axes.plot(*zip(*points, strict=True), linestyle=style or "none", color=COLOURS[colour], marker=marker, markersize=9 if method == "exact" else 7, linewidth=1.8, label=method)
            least, most = min(points), max(points)
            told.append(f"{name}, {method}: {least[1]:.2g} at {least[0]:.0%} of the FLOPs" + (f", {most[1]:.2g} at {most[0]:.0%}" if most > least else ""))
        axes.axhline(mean, color=COLOURS["masked"], linewidth=1.2, linestyle="-.", label="the mean value for everybody")
        axes.set(xscale="log", yscale="log", title=name, xlabel="FLOPs / exact attention's", ylim=(3e-8, 10))
        axes.set_xticks([1 / 16, 1 / 4, 1], ["1/16", "1/4", "1"])
        axes.set_xticks([], minor=True)
        told.append(f"{name}, the mean value: {mean:.2g}")
    row[0].set_ylabel("relative error")
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return Picture(figure, caption, "Curves. " + "; ".join(told) + ".")
