"""Where the bytes, the operations and the time of naive attention go."""

from flashedu.viz.curves import size
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

STEPS = {
    "qk": ("S = Q Kᵀ", "query", ""),
    "softmax": ("P = softmax(S)", "scores", "///"),
    "pv": ("O = P V", "value", "..."),
}
ARRAYS = {"q": "query", "k": "key", "v": "value", "o": "output", "s": "scores", "p": "scores"}


@drawing
def shares(amounts, caption):
    """Picture of one bar of 100 % for each entry of `amounts`: {what: {"qk": .., "softmax": .., "pv": ..}}."""
    figure, ax = new_figure(figsize=(8, 2.6))
    said = []
    for row, (what, parts) in enumerate(amounts.items()):
        left, total = 0.0, sum(parts.values())
        for step, (_, colour, hatch) in STEPS.items():
            share = 100 * parts[step] / total
            ax.barh(row, share, left=left, color=COLOURS[colour], hatch=hatch, edgecolor="white", height=0.7)
            if share <= 6:  # too narrow for its label
                ax.text(left + share / 2, row - 0.38, f"{share:.0f} %", ha="center", va="bottom")
            else:
                ax.text(
                    left + share / 2,
                    row,
                    f"{share:.0f} %",
                    ha="center",
                    va="center",
                    color="white",
                    fontweight="bold",
                    bbox={"facecolor": COLOURS[colour], "edgecolor": "none", "pad": 1.5},
                )
            left += share
        said.append(f"{what}: " + ", ".join(f"{STEPS[s][0]} {100 * parts[s] / total:.0f} %" for s in STEPS))
    for label, colour, hatch in STEPS.values():
        ax.bar(0, 0, color=COLOURS[colour], hatch=hatch, edgecolor="white", label=label)
    ax.set_yticks(range(len(amounts)), list(amounts))
    ax.set(xlim=(0, 100), ylim=(len(amounts) - 0.5, -0.8), xlabel="share of the three steps together, %")
    ax.grid(visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return Picture(figure, caption, ". ".join(said) + ".")


@drawing
def moved(arrays, caption):
    """Picture of bytes between HBM and SRAM for each array: {name: (read_bytes, written_bytes)}."""
    figure, ax = new_figure(figsize=(8, 2.9))
    biggest = max(r + w for r, w in arrays.values()) / 1e3
    for row, (name, (read, written)) in enumerate(arrays.items()):
        ax.barh(row, read / 1e3, color=COLOURS[ARRAYS[name]], height=0.7, edgecolor="white")
        ax.barh(
            row,
            written / 1e3,
            left=read / 1e3,
            color=COLOURS[ARRAYS[name]],
            hatch="///",
            height=0.7,
            edgecolor="white",
        )
        ax.text((read + written) / 1e3 + 0.01 * biggest, row, size(read + written), va="center")
    ax.bar(0, 0, color=COLOURS["text"], edgecolor="white", label="read")
    ax.bar(0, 0, color=COLOURS["text"], hatch="///", edgecolor="white", label="written")
    ax.set_yticks(range(len(arrays)), [name.upper() for name in arrays])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.15 * biggest), xlabel="kB between HBM and SRAM")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper right")
    said = ", ".join(
        f"{name.upper()} {size(r)} read and {size(w)} written" for name, (r, w) in arrays.items()
    )
    return Picture(figure, caption, said + ".")
