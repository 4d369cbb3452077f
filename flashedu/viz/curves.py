"""Time and memory against the sequence length, measured on a GPU or on the reader's own machine."""

from flashedu.hardware import GIB
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

ALGORITHMS = {"naive": ("hbm", "v"), "flash": ("output", "^")}  # colour, marker


def size(amount, unit="B"):
    """A number of bytes, or of another unit, with the prefix that suits it: 4.29 GB."""
    for prefix, factor in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= 0.9995 * factor:
            return f"{amount / factor:.3g} {prefix}{unit}"
    return f"{amount:.0f} {unit}"


def duration(seconds):
    """A time with the unit that suits it: 130 ms."""
    for unit, factor in (("s", 1), ("ms", 1e-3)):
        if seconds >= factor:
            return (
                f"{seconds / factor:.3g} {unit}"
                if seconds / factor < 100
                else f"{seconds / factor:.0f} {unit}"
            )
    return f"{seconds * 1e6:.3g} µs"


def lengths_axis(ax, lengths):
    """Make the x axis one of tokens, logarithmic, with a tick for each of `lengths`."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths])
    ax.set_xlabel("N, tokens")


@drawing
def naive_against_flash(result):
    """Picture of a sweep over N: time and peak memory, from a result of tools/measure_traffic.py."""
    rows, capacity = result["sweep"], result["environment"]["hbm_capacity_bytes"]
    figure, (left, right) = new_figure(1, 2, figsize=(9, 3.8))
    last, failed = {}, None
    for name, (colour, marker) in ALGORITHMS.items():
        fits = [
            (row["n"], row[name]["time_ms"], row[name]["peak_bytes"])
            for row in rows
            if "time_ms" in row[name]
        ]
        lengths, times, peaks = zip(*fits, strict=True)
        left.plot(lengths, times, marker=marker, color=COLOURS[colour], label=name)
        right.plot(lengths, [p / 1e9 for p in peaks], marker=marker, color=COLOURS[colour], label=name)
        last[name] = dict(zip(lengths, zip(times, peaks, strict=True), strict=True))
        failed = failed or next((row["n"] for row in rows if "time_ms" not in row[name]), None)
    right.axhline(capacity / 1e9, color=COLOURS["text"], lw=1, ls="--")
    right.annotate(
        f"GPU memory: {capacity / 1e9:.0f} GB, {capacity / GIB:.0f} GiB",
        (rows[0]["n"], capacity / 1e9),
        (0, -4),
        textcoords="offset points",
        va="top",
        fontsize=10,
    )
    for ax, unit, title in ((left, "milliseconds", "time"), (right, "GB", "peak memory")):
        lengths_axis(ax, [row["n"] for row in rows][::2])
        ax.set(yscale="log", ylabel=unit)
        ax.set_title(title, fontsize=11)
        ax.legend(loc="lower right")
    n = max(last["naive"])
    (t_naive, m_naive), (t_flash, m_flash) = last["naive"][n], last["flash"][n]
    end = f" At N = {failed:,} naive attention did not fit." if failed else ""
    shape = result["shape"]
    caption = (
        f"One attention layer of Llama-3-8B ({shape['heads']} query heads, {shape['kv_heads']} key and value "
        f"heads, D = {shape['head_dim']}, {shape['itemsize_bytes']} bytes an element) on one "
        f"{result['environment']['device']}: naive is three torch kernels, flash is torch's FlashAttention-2."
    )
    alt = (
        f"Two curves each, both axes logarithmic. At N = {n:,} naive takes {t_naive:.3g} ms and {size(m_naive)}, "
        f"flash {t_flash:.3g} ms and {size(m_flash)}.{end}"
    )
    return Picture(figure, caption, alt)


@drawing
def growth(measured, predicted, limit_bytes):
    """Picture of what was measured and of a prediction up to the limit, both {n: (seconds, peak_bytes)}."""
    figure, axes = new_figure(1, 2, figsize=(9, 3.6))
    end, (end_seconds, end_bytes) = max(predicted.items())
    for index, (ax, title, unit, factor) in enumerate(
        zip(axes, ("time", "peak memory"), ("seconds", "GB"), (1, 1e9), strict=True)
    ):
        ax.plot(
            list(predicted),
            [p[index] / factor for p in predicted.values()],
            "--",
            color=COLOURS["text"],
            lw=1.3,
            label="prediction",
        )
        ax.plot(
            list(measured),
            [m[index] / factor for m in measured.values()],
            "v",
            color=COLOURS["hbm"],
            label="measured",
        )
        lengths_axis(ax, [2**i for i in range(8, end.bit_length(), 2)])
        ax.set(yscale="log", ylabel=unit)
        ax.set_title(title, fontsize=11)
        ax.legend(loc="lower right")
    axes[1].axhline(limit_bytes / 1e9, color=COLOURS["text"], lw=1)
    axes[1].annotate(
        f"memory of the machine, {limit_bytes / 1e9:.0f} GB",
        (min(measured), limit_bytes / 1e9),
        (0, -4),
        textcoords="offset points",
        va="top",
        fontsize=10,
    )
    axes[1].plot([end], [end_bytes / 1e9], "x", color=COLOURS["text"], ms=10, mew=2)
    when = f"The prediction meets the limit at N = {end:,}, after {duration(end_seconds)}."
    caption = f"Naive attention, one head, on this machine. {when}"
    longest, (seconds, peak_bytes) = max(measured.items())
    said = f"at N = {longest:,} {duration(seconds)} and {size(peak_bytes)}"
    return Picture(figure, caption, f"Both curves rise with the square of N; measured {said}. {when}")


@drawing
def error_against_bound(ratios, bound_name="what rounding allows"):
    """Picture of error / bound against the block size: {label: {block size: ratio}}, the bound itself at 1."""
    figure, ax = new_figure(figsize=(7.5, 3.8))
    styles = (("v", "-", "full"), ("o", "-", "none"), ("v", ":", "full"), ("o", ":", "none"))
    for (label, series), (marker, line, fill) in zip(ratios.items(), styles, strict=False):
        x, y = list(series), list(series.values())
        ax.plot(x, y, line, marker=marker, markersize=8, fillstyle=fill, color=COLOURS["text"], label=label)
    ax.axhline(1, color=COLOURS["text"], lw=1)
    blocks = sorted({block for series in ratios.values() for block in series})
    ax.annotate(bound_name, (blocks[0], 1), (0, 3), textcoords="offset points", fontsize=10)
    ax.set_xscale("log", base=2)
    ax.set_xticks(blocks, [str(b) for b in blocks])
    ax.set(yscale="log", xlabel="keys in a block", ylabel="error / bound")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=10)
    said = "; ".join(
        f"{label}: {min(s.values()):.2g} to {max(s.values()):.2g}" for label, s in ratios.items()
    )
    return Picture(
        figure,
        "The largest error of an output element, as a multiple of what rounding alone may cause. Both axes are logarithmic.",
        f"Error over bound. {said}.",
    )
