"""A measured comparison as text: one table for each direction, mask and head dimension."""
CELL = "{:>8.3f} {:>4.0f} {:>3.0f}%"
WIDTH = len(CELL.format(0, 0, 0))
RATIOS = ("fa2", "cudnn")  # whose times are compared with ours


def text(measured, ours="flashedu"):
    """All tables of a result of `flashedu.bench.speed` or `ladder`, and below them why a contender has no time."""
    place = measured["environment"]
    power = place["power_limit_w"]
    head = (f"{place['device']} ({power if isinstance(power, str) else f'{power:.0f} W'}), torch {place['torch']}, triton {place['triton']}, "
            f"{measured['date']}\nIn each cell: milliseconds, TFLOP/s as credited, percent of a bf16 matrix product in the same rounds."
            f"\nfa2/ours and cudnn/ours: how many times as long they take as {ours}.")
    blocks, reasons = {}, {}
    for row in measured["rows"]:
        block = blocks.setdefault((row["head_dim"], row["causal"], row["direction"]), {})
        block.setdefault(row["n"], {})[row["contender"]] = row
        for why in ("out_of_memory", "refused", "not_run"):
            if why in row:
                reasons.setdefault((row["contender"], why.replace("_", " "), row[why]), []).append(row)
    tables = [one(key, lines, ours) for key, lines in blocks.items()]
    ends = [f"{name}, {why} ({len(rows)}x, first {rows[0]['direction']}, D = {rows[0]['head_dim']}, N = {rows[0]['n']}): {reason}"
            for (name, why, reason), rows in reasons.items()]
    return "\n\n".join([head, *tables, *(["\n".join(ends)] if ends else [])])


def one(key, lines, ours):
    """The table of one head dimension, mask and direction; lines: {n: {contender: row}}."""
    head_dim, causal, direction = key
    names = [name for name in next(iter(lines.values())) if name != "matmul"]
    title = f"{direction}, D = {head_dim}, {'causal' if causal else 'full'}"
    matmul = [row["matmul"]["flops_per_s"] / 1e12 for row in lines.values()]
    out = [f"{title}; the matrix product ran at {min(matmul):.0f} to {max(matmul):.0f} TFLOP/s",
           " ".join([f"{'N':>6}", *(f"{name:>{WIDTH}}" for name in names), *(f"{name + '/ours':>10}" for name in RATIOS)])]
    for n, row in lines.items():
        out.append(" ".join([f"{n:>6}", *(cell(row[name]) for name in names), *(ratio(row, name, ours) for name in RATIOS)]))
    return "\n".join(out)


def cell(row):
    if "time_ms" not in row:
        return f"{'no memory' if 'out_of_memory' in row else 'refused' if 'refused' in row else '-':>{WIDTH}}"
    return CELL.format(row["time_ms"], row["flops_per_s"] / 1e12, 100 * row["of_matmul"])


def ratio(row, name, ours):
    """How many times as long as ours another one takes."""
    both = [row.get(which, {}).get("time_ms") for which in (name, ours)]
    return f"{both[0] / both[1]:>10.2f}" if all(both) else f"{'':>10}"
