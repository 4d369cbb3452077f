"""The backward pass: gradients against finite differences, which program owns which sums, and two trainings compared."""
from flashedu.viz.figure import COLOURS, MARKERS, Picture, drawing, new_figure

PARTS = {"dq": "query", "dk": "key", "dv": "value"}  # a gradient has the colour of what it belongs to


@drawing
def against_differences(steps, errors):
    """Error of formulas against central differences, {label: [error for each step]}; other labels than dq, dk, dv in black."""
    figure, axes = new_figure(figsize=(7.5, 3.8))
    for label, values in errors.items():
        colour, marker = (COLOURS[PARTS[label]], MARKERS[PARTS[label]]) if label in PARTS else (COLOURS["text"], "X")
        axes.plot(steps, values, "-" if label in PARTS else ":", marker=marker, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="step h", ylabel="largest error")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    told = "; ".join(f"{label}: {min(values):.1g} at h = {steps[list(values).index(min(values))]:.0e}" for label, values in errors.items())
    return Picture(
        figure,
        "Largest difference between a gradient's formula and the central difference with step h, all in float64.",
        f"Error against h, both axes logarithmic. Smallest error, {told}.",
    )


@drawing
def owners(tiles=5):
    """The square of scores for each of the two kernels: whose tiles a program visits, and which sums it owns."""
    figure, panels = new_figure(1, 2, figsize=(8, 3.6))
    mine = 1
    for axes, by_key, title in zip(panels, (True, False), ("a program of the dK, dV kernel", "a program of the dQ kernel"), strict=True):
        for row in range(tiles):
            for column in range(tiles):
                hit = (column if by_key else row) == mine
                axes.add_patch(_square(column, row, COLOURS["scores"] if hit else "none", "white" if hit else COLOURS["masked"]))
        kinds = ("key", "value") if by_key else ("query",)
        for step, kind in enumerate(kinds):
            away = tiles + 0.35 + 1.2 * step
            x, y = (mine, away) if by_key else (away, mine)
            axes.add_patch(_square(x, y, COLOURS[kind]))
            name = {"key": "dK", "value": "dV", "query": "dQ"}[kind]
            axes.text(x + 0.5, y + 0.5, name, ha="center", va="center", color="white", fontweight="bold", fontsize=10)
        middle, far = mine + 0.5, tiles - 0.2
        start, end = ((middle, 0.2), (middle, far)) if by_key else ((0.2, middle), (far, middle))
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "white", "lw": 2})
        axes.set(xlim=(0, tiles + 1.6), ylim=(tiles + 2.7, -0.7), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.text(tiles / 2, -0.15, "tiles of keys", ha="center", va="bottom", fontsize=10)
        axes.text(-0.15, tiles / 2, "tiles of queries", ha="right", va="center", rotation=90, fontsize=10)
        axes.set_title(title, fontsize=11)
        axes.grid(visible=False)
    return Picture(
        figure,
        "Left: a program owns a tile of keys, walks down the tiles of queries and keeps two sums. Right: a program owns a tile "
        "of queries, walks along the keys and keeps one. Each recomputes P and dP in the tiles that it visits.",
        "Two squares of tiles. In the left one a column is marked, with its sums dK and dV below; in the right one a row, "
        "with its sum dQ beside it.",
    )


def _square(x, y, colour, edge="white"):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, edgecolor=edge, linewidth=1, zorder=1.1 if edge == "white" else 1)


@drawing
def training(losses, differences):
    """Loss curves {label: values}, all of them dashed but the first, and differences of losses {label: values}, step by step."""
    figure, (left, right) = new_figure(1, 2, figsize=(9, 3.8))
    styles = (("hbm", "-", 5), ("output", "--", 2), ("text", ":", 2))
    for (label, values), (colour, line, width) in zip(losses.items(), styles, strict=False):
        left.plot(values, line, color=COLOURS[colour], lw=width, alpha=0.4 if width > 2 else 1, label=label)
    for (label, values), (colour, marker) in zip(differences.items(), (("output", "^"), ("text", "o")), strict=False):
        right.plot([1e6 * x for x in values], marker, color=COLOURS[colour], ms=5, fillstyle="none", label=label)
    left.set(xlabel="training step", ylabel="loss (nats a character)")
    right.set(xlabel="training step", ylabel="difference of losses, in millionths")
    for axes in (left, right):
        axes.legend(fontsize=10)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.45 * (high - low))  # room for the legend
    told = "; ".join(f"{label}: at most {max(map(abs, values)):.1e}" for label, values in differences.items())
    first, last = next(iter(losses.values()))[0], next(iter(losses.values()))[-1]
    return Picture(
        figure,
        f"One training, done {len(losses)} times: {'; '.join(losses)}. Left the losses, which cover each other, right what lies between them.",
        f"Left, {len(losses)} curves that cannot be told apart, from {first:.2f} to {last:.2f}. Right, the differences, {told}.",
    )


@drawing
def kept(contexts, sizes):
    """Bytes that autograd keeps for a backward pass against the context length, {label: bytes for each context}."""
    figure, axes = new_figure(figsize=(7.5, 3.6))
    styles = (("hbm", "v", "-"), ("output", "^", "-"), ("masked", "o", ":"))
    for (label, values), (colour, marker, line) in zip(sizes.items(), styles, strict=False):
        axes.plot(contexts, [x / 1e6 for x in values], line, marker=marker, color=COLOURS[colour], label=label)
    axes.set(xscale="log", yscale="log", xlabel="context length N (characters)", ylabel="kept between the passes (MB)")
    axes.set_xticks(contexts, [str(n) for n in contexts])
    axes.set_xticks([], minor=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    told = "; ".join(f"{label}: {values[0] / 1e6:.3g} to {values[-1] / 1e6:.3g} MB" for label, values in sizes.items())
    return Picture(
        figure,
        "What autograd keeps of one training step of the model between forward and backward, without its weights.",
        f"Curves over context lengths {contexts[0]} to {contexts[-1]}, both axes logarithmic. {told}.",
    )
