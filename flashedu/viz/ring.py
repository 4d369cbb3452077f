"""Who holds which keys when, in a ring of processes, and how much of each square of scores a causal mask leaves."""
from flashedu.viz.figure import COLOURS, SHADE
from flashedu.viz.svg import FAINT, WIDTH, Drawing, line, number, path, rect, text

SIDE, TOP, ROW = 48, 100, 72  # of a square; of the first row of squares; from one to the next
COLUMN, MARGIN = 84, 66  # from one process to the next, and what is left of the first


def seen(query_chunk, key_chunk):
    """The share of the scores of two chunks that a causal mask leaves, but for the diagonal itself: 1, 1/2 or 0."""
    return 1 if query_chunk > key_chunk else 0.5 if query_chunk == key_chunk else 0


def ring_work(chunks):
    """Squares of chunk by chunk that each process computes in each step: a list of steps, each a list of processes.

    chunks has the pair of chunks that each process holds. In step s the keys of process r - s visit process r.
    """
    world = len(chunks)
    return [[sum(seen(i, j) for i in chunks[r] for j in chunks[(r - s) % world]) for r in range(world)] for s in range(world)]


def ring_drawing(ways):
    """Picture of causal attention in a ring for each way to cut the sequence: {name: the pair of chunks of each process}."""
    drawn, told = [], []
    for place, (name, chunks) in enumerate(ways.items()):
        left, world, work = place * WIDTH / 2, len(chunks), ring_work(chunks)
        longest = [max(step) for step in work]
        drawn.append(text(left + 10, 26, name, weight="bold", size=19))
        for r, held in enumerate(chunks):
            x = left + MARGIN + r * COLUMN
            drawn += [text(x, 56, f"rank {r}", size=16), *_chip(x, 62, 62, f"q {held[0]}, {held[1]}", "query")]
        drawn.append(text(left + MARGIN + world * COLUMN - 12, 78, "longest", size=16))
        for s in range(world):
            y = TOP + s * ROW
            drawn += [text(left + 10, y + 30, f"step {s}", size=16), text(left + MARGIN + world * COLUMN + 10, y + 30, amount(longest[s]), weight="bold")]
            for r in range(world):
                x, source = left + MARGIN + r * COLUMN, (r - s) % world
                if s + 1 < world and r + 1 < world:  # the last process sends to the first
                    drawn.append(line(x + SIDE + 2, y + SIDE + 2, x + COLUMN - 2, y + ROW - 4, FAINT, stroke_width=2))
                drawn += [_square(x, y, chunks[r], chunks[source]), *_chip(x + SIDE + 2, y, 26, f"k{source}", "key")]
        y = TOP + world * ROW
        total = [sum(step[r] for step in work) for r in range(world)]
        drawn.append(text(left + 10, y + 22, "all", size=16))
        drawn += [text(left + MARGIN + r * COLUMN + SIDE / 2, y + 22, amount(each), anchor="middle", weight="bold") for r, each in enumerate(total)]
        drawn.append(text(left + MARGIN + world * COLUMN + 10, y + 22, amount(sum(longest)), weight="bold"))
        told.append(f"{name.capitalize()}: the processes compute {', '.join(map(amount, total))} squares, and the steps last {amount(sum(longest))}")
    caption = ("Each rank is a process. Rows of a square are its two chunks of queries, columns those of the keys that visit (k3: of rank 3), which then move on along the lines, and from "
               f"the last rank to the first; gold is computed, grey is masked. A step lasts as long as its busiest process. {'. '.join(told)}.")
    return Drawing("".join(drawn), TOP + len(work) * ROW + 40, caption)


def _square(x, y, queries, keys):
    """The four squares of two chunks with two: whole, a triangle below the diagonal, or empty."""
    half, filled = SIDE / 2, ""
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            a, b = number(x + j * half), number(y + i * half)
            filled += {1: f"M{a} {b}h{half:g}v{half:g}h-{half:g}z", 0.5: f"M{a} {b}v{half:g}h{half:g}z", 0: ""}[seen(query, key)]
    hidden = rect(x, y, SIDE, SIDE, COLOURS["masked"], fill_opacity=SHADE)
    cross = path(f"M{number(x + half)} {y}v{SIDE}M{number(x)} {number(y + half)}h{SIDE}", stroke=FAINT)
    return hidden + (path(filled, COLOURS["scores"]) if filled else "") + rect(x, y, SIDE, SIDE, "none", stroke=FAINT) + cross


def _chip(x, y, width, words, thing):
    """White words on the colour of what they name: read in both themes."""
    return rect(x, y, width, 20, COLOURS[thing]), text(x + width / 2, y + 16, words, "white", size=16, anchor="middle", weight="bold")


def amount(squares):
    """A number of squares as words: 2, 1½."""
    return f"{int(squares) or ''}{'½' if squares % 1 else ''}" or "0"
