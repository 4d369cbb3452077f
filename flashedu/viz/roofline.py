"""The roofline: how fast a program may run, given how many operations it does for each byte it moves."""

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

MARKS = ("o", "s", "D", "^")
LINES = ("-", "--", ":")


def attainable_flops(gpu, intensity):
    """FLOP/s in reach at `intensity` FLOP per HBM byte on a `Gpu`: min(bandwidth * intensity, matmul rate)."""
    return min(gpu.hbm_bytes_per_s * intensity, gpu.matmul_flops)


@drawing
def roofline(gpus, points):
    """Picture of the roofs of `gpus`, and `points`: {label: (FLOP per HBM byte, measured FLOP/s on gpus[0])}.

    A thin line joins each point to the roof above it.
    """
    figure, ax = new_figure(figsize=(7.5, 4.2))
    for gpu, line in zip(gpus, LINES, strict=False):
        x = [1, gpu.ridge, 20_000]
        ax.plot(
            x,
            [attainable_flops(gpu, i) / 1e12 for i in x],
            line,
            color=COLOURS["text"],
            lw=1.6,
            label=f"{gpu.name}: ridge at {gpu.ridge:.0f} FLOP/byte",
        )
        ax.plot([gpu.ridge], [gpu.matmul_flops / 1e12], "|", color=COLOURS["text"], ms=16)
    said = []
    for (label, (intensity, flops)), mark, colour in zip(
        points.items(), MARKS, ("hbm", "output", "query", "value"), strict=False
    ):
        roof = attainable_flops(gpus[0], intensity)
        ax.plot([intensity, intensity], [flops / 1e12, roof / 1e12], color=COLOURS[colour], lw=1)
        ax.plot([intensity], [flops / 1e12], mark, color=COLOURS[colour], ms=9)
        ax.annotate(
            f"{label}\n{flops / 1e12:.0f} TFLOP/s",
            (intensity, flops / 1e12),
            (0, -10),
            textcoords="offset points",
            color=COLOURS[colour],
            ha="center",
            va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
        said.append(
            f"{label}: {intensity:.0f} FLOP per byte, {flops / 1e12:.0f} TFLOP/s under a roof of {roof / 1e12:.0f}"
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(1, 20_000),
        ylim=(3, 2_000),
        xlabel="FLOP per byte of HBM traffic",
        ylabel="TFLOP/s",
    )
    ax.legend(loc="upper left", fontsize=10)
    roofs = "; ".join(
        f"{g.name} rises at {g.hbm_bytes_per_s / 1e12:.2f} TB/s to {g.matmul_flops / 1e12:.0f} TFLOP/s at "
        f"{g.ridge:.0f} FLOP per byte"
        for g in gpus
    )
    return Picture(
        figure,
        "Roofline, both axes logarithmic. Left of the ridge the memory sets the limit, right of it the matrix units. "
        f"Roofs are nominal; points were measured on one {gpus[0].name}.",
        f"Roofs: {roofs}. Points: {'; '.join(said)}.",
    )
