"""The ladder, measured: naive attention, three versions of flash attention, and torch's, in one run on one GPU."""

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

RUNGS = {  # label, colour, marker, line; ours have one colour
    "naive": ("naive", "hbm", "v", "-"),
    "version1": ("version 1, Triton", "output", "X", ":"),
    "version2": ("version 2, Triton", "output", "D", "--"),
    "version3": ("version 3, Gluon", "output", "^", "-"),
    "fa2": ("torch, FlashAttention-2", "key", "s", "--"),
    "cudnn": ("torch, cuDNN", "query", "o", "-"),
}


def timed(result, head_dim, causal):
    """{rung: {n: row}} of the rungs that have times at one head dimension and mask, with "matmul" among them."""
    found = {}
    for row in result["rows"]:
        if (row["head_dim"], row["causal"]) == (head_dim, causal) and "time_ms" in row:
            found.setdefault(row["contender"], {})[row["n"]] = row
    return found


def what(result, head_dim, causal):
    """The measurement in words, for a caption."""
    return f"Forward attention on one {result['environment']['device']}, D = {head_dim}, {'causal' if causal else 'no mask'}, bfloat16"


@drawing
def rates(result, head_dim=128, causal=False):
    """TFLOP/s against N, a line for each rung. Takes a result of `flashedu.bench.ladder`."""
    found = timed(result, head_dim, causal)
    figure, axes = new_figure(figsize=(8.2, 4.2))
    lengths, told = sorted(found["matmul"]), []
    matmul = [found["matmul"][n]["flops_per_s"] / 1e12 for n in lengths]
    axes.plot(lengths, matmul, color=COLOURS["text"], linewidth=1, label="matrix product")
    for name, (label, colour, marker, line) in RUNGS.items():
        points = [(n, row["flops_per_s"] / 1e12) for n, row in sorted(found.get(name, {}).items())]
        if points:
            width = 3 if name == "version3" else 1.8
            axes.plot(*zip(*points, strict=True), line, color=COLOURS[colour], marker=marker, markersize=7, linewidth=width, label=label)
            told.append(f"{label}: {points[0][1]:.0f} at N = {points[0][0]:,}, {points[-1][1]:.0f} at {points[-1][0]:,}")
    axes.set(xscale="log", xlabel="N, tokens", ylabel="TFLOP/s", ylim=(0, 1.08 * max(matmul)))
    axes.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
    axes.set_xticks([], minor=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=10)
    return Picture(
        figure,
        f"{what(result, head_dim, causal)}: speed against the length of a sequence, the number of tokens in the batch being the same. "
        "The thin line is a large matrix product in the same rounds.",
        f"Lines of TFLOP/s. Matrix product: {min(matmul):.0f} to {max(matmul):.0f}. " + "; ".join(told) + ".",
    )


@drawing
def steps(result, head_dim=128, causal=False):
    """TFLOP/s of each rung at the greatest N, as bars. Takes a result of `flashedu.bench.ladder`."""
    found = timed(result, head_dim, causal)
    n = max(found["matmul"])
    bars = [(name, *RUNGS[name][:2], found[name][n]) for name in RUNGS if n in found.get(name, {})]
    figure, axes = new_figure(figsize=(8.2, 1.1 + 0.45 * len(bars)))
    matmul, told = found["matmul"][n]["flops_per_s"] / 1e12, []
    for y, (name, label, colour, row) in enumerate(bars):
        rate = row["flops_per_s"] / 1e12
        axes.barh(y, rate, height=0.7, color=COLOURS[colour], hatch="" if name.startswith("version") else "//", edgecolor="white", linewidth=0)
        axes.annotate(f"{rate:.0f} TFLOP/s, {row['time_ms']:.2f} ms", (matmul, y), (8, 0), textcoords="offset points", va="center", fontsize=10)
        told.append(f"{label}: {rate:.0f} TFLOP/s, {row['time_ms']:.2f} ms, {row['of_matmul']:.0%} of the matrix product")
    axes.axvline(matmul, color=COLOURS["text"], linewidth=1)
    axes.annotate(f"matrix product, {matmul:.0f}", (matmul, -0.6), (0, 4), textcoords="offset points", ha="center", fontsize=10)
    axes.set(yticks=range(len(bars)), yticklabels=[label for _, label, _, _ in bars], ylim=(len(bars) - 0.4, -0.6), xlabel="TFLOP/s", xlim=(0, 1.4 * matmul))
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= matmul])
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        f"{what(result, head_dim, causal)}, N = {n:,}: the rungs of the ladder, with their times. Plain bars are this package's kernels. "
        "The vertical line is a large matrix product in the same rounds.",
        "Bars. " + "; ".join(told) + ".",
    )
