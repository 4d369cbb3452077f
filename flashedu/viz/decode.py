"""Decoding against the memory's bandwidth: predictions as lines, measurements as marks."""
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

LINES = {  # colour, line, marker
    "keys split, predicted": ("output", "-", ""),
    "one part, predicted": ("output", "--", ""),
    "keys split": ("output", "", "P"),
    "one part": ("output", "", "^"),
    "FlashAttention-2": ("key", ":", "s"),
    "cuDNN": ("query", "-.", "o"),
}


@drawing
def bandwidth(lines, x_label, y_label, caption):
    """Shares of the bandwidth on logarithmic x; takes a dict: name of LINES -> ([x], [share])."""
    figure, axes = new_figure(figsize=(7.5, 3.6))
    told = []
    for name, (x, shares) in lines.items():
        colour, line, marker = LINES[name]
        seen_through = {"markerfacecolor": "none", "markersize": 9} if line else {}  # where others have the same share
        axes.plot(x, shares, color=COLOURS[colour], linestyle=line or "none", marker=marker, label=name, **seen_through)
        told.append(f"{name}: {shares[0]:.1%} at {x[0]:,}, {shares[-1]:.1%} at {x[-1]:,}, at most {max(shares):.1%}")
    axes.set(xscale="log", xlabel=x_label, ylabel=y_label, ylim=(0, 1.05))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    places = [x for xs, _ in lines.values() for x in xs]
    ticks = [2**e for e in range(18) if min(places) <= 2**e <= max(places)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=10)
    axes.set_xticks([], minor=True)
    axes.legend(loc="best", fontsize=10)
    return Picture(figure, caption, f"Curves of the {y_label} against the {x_label}. " + "; ".join(told) + ".")
