"""One token of decoding: parts of the keys for the places of a GPU, and the states that are merged."""
from flashedu.cost import kv_cache_bytes
from flashedu.hardware import gpu
from flashedu.splits import PROGRAMS, START, bandwidth_share, splits_for, waves_time
from flashedu.viz.curves import duration, size
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import FAINT, INK, SIZE, WIDTH, Drawing, Plot, line, number, path, polyline, rect, text

BLOCK_K, HEAD_DIM, ITEMSIZE = 64, 128, 2
LEFT, RIGHT = 20, WIDTH - 20
GRID, CELL, COLUMNS = 82, 18, 22  # of multiprocessors: top, side, how many in a row
CACHE, STATES, MERGED, THICK = 366, 418, 486, 26  # tops of what lies below, and how high it is
HEIGHT = 530
MOST = 512  # parts on the curve's axis


def splits_drawing(splits, n, batch, kv_heads, gpu_name):
    """Split keys: how many parts fill a GPU, and the merge of their states"""
    device, heads, tiles = gpu(gpu_name), batch * kv_heads, -(-n // BLOCK_K)
    programs, places = heads * splits, PROGRAMS * device.sms
    waves = -(-programs // places)
    last = programs - (waves - 1) * places
    share, best = (bandwidth_share(heads, tiles, parts, device.sms) for parts in (splits, splits_for(heads, tiles, device.sms)))
    cache_bytes = batch * kv_cache_bytes(n, 1, kv_heads, HEAD_DIM, ITEMSIZE)
    least = cache_bytes / device.hbm_bytes_per_s
    which = "the only wave" if waves == 1 else f"the last of {waves:,} waves"
    drawn = [
        text(LEFT, 30, f"{plural(heads, 'key head')} x {plural(splits, 'part')} = {plural(programs, 'program')}", weight="bold", size=SIZE + 4),
        text(LEFT, 60, f"{device.name}, {device.sms} multiprocessors: {last:,} of {places:,} places busy in {which}"), _grid(device.sms, last),
        text(LEFT, 268, f"the cache: {size(cache_bytes)}"),
        text(LEFT, 294, f"at full bandwidth: {duration(least)}"),
        text(LEFT, 320, f"predicted: {duration(least / share)}, {share:.1%} of the bandwidth", weight="bold"),
        *_curve(heads, tiles, splits, share, device.sms), *_parts(splits, tiles),
    ]
    caption = (
        f"A decoding step, one layer, {plural(batch, 'sequence')} with {n:,} tokens in the cache, {plural(kv_heads, 'key head')}, "
        f"D = {HEAD_DIM}, 2 bytes: {plural(programs, 'program')} in {plural(waves, 'wave')}. Predicted {share:.1%} of the bandwidth; the best is {best:.1%}, "
        f"with {plural(splits_for(heads, tiles, device.sms), 'part')}. Each square is a multiprocessor, its halves are its places.")
    note = ""
    if splits > tiles:
        note = f"There are only {tiles} tiles of {BLOCK_K} keys: {splits - tiles} parts are empty. The empty state changes nothing, but it takes a program."
    elif waves_time(heads, tiles, splits, device.sms) <= heads * tiles / device.sms + START:
        note = "The memory is at work from the first program to the last: "
        note += "no other cut could make it faster." if share == best else "only without a cut, and so without a merge, would it be faster."
    elif waves > 1 and last < places:
        note = f"In the last wave {places - last:,} places have nothing to do."
    elif heads >= places:
        note = "There are heads enough to fill the GPU without splitting."
    elif -(-tiles // splits) <= START:
        note = f"Parts of {-(-tiles // splits)} tiles are so short that beginning and ending costs as much as reading."
    return Drawing("".join(drawn), HEIGHT, caption, note)


def _grid(multiprocessors, programs):
    """A square for each multiprocessor; its halves are the places of programs, filled one multiprocessor after the other."""
    frames, filled = "", ""
    for number_ in range(multiprocessors):
        x, y = LEFT + number_ % COLUMNS * CELL, GRID + number_ // COLUMNS * CELL
        frames += f"M{x} {y}h{CELL - 3}v{CELL - 3}h-{CELL - 3}z"
        for place in range(PROGRAMS):
            if number_ + place * multiprocessors < programs:  # every multiprocessor gets one before any gets two
                filled += f"M{x} {y + place * 8}h{CELL - 3}v7h-{CELL - 3}z"
    return path(filled, COLOURS["output"]) + path(frames, stroke=FAINT) if filled else path(frames, stroke=FAINT)


def _curve(heads, tiles, splits, share, multiprocessors):
    """The predicted share against the number of parts, and where the slider stands."""
    plot = Plot((540, 108, RIGHT - 10, 268), (1, MOST), (0, 1), log="x")
    points = [(plot.x(parts), plot.y(bandwidth_share(heads, tiles, parts, multiprocessors))) for parts in range(1, MOST + 1)]
    x, y = plot.x(splits), plot.y(share)
    ticks = [1, 4, 16, 64, 256]
    return [
        plot.frame("parts", "predicted share of the bandwidth", "{:g}".format, "{:.0%}".format, ticks, [0, 0.25, 0.5, 0.75, 1]),
        polyline(points, COLOURS["output"], stroke_width=2),
        line(x, plot.box[1], x, plot.box[3], INK, stroke_width=1.5, stroke_dasharray="5 4"),
        path(f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z", INK),
    ]


def _parts(splits, tiles):
    """The keys of one head in parts, the state of each, and the state of all."""
    count = min(splits, tiles)
    pitch, gap = (RIGHT - LEFT) / count, 3 if count < 100 else 0.5
    boxes, links = f"{pitch - gap:.4f} {gap}", f"0 {(pitch - gap) / 2 - 0.75:.4f} 1.5 {(pitch + gap) / 2 - 0.75:.4f}"  # dashes of thick lines
    middle = [LEFT + pitch * part + (pitch - gap) / 2 for part in range(count)]
    merge = "".join(f"M{number(x)} {STATES + THICK + 2}L{number(WIDTH / 2 + (x - WIDTH / 2) / 5)} {MERGED - 2}" for x in middle)
    wide = (RIGHT - LEFT) / 5
    each = f"{tiles // splits:,}" if tiles % splits == 0 else f"{tiles // splits:,} or {tiles // splits + 1:,}"
    return [
        text(LEFT, CACHE - 12, f"keys and values of one head: {tiles:,} tiles of {BLOCK_K} keys, {each} a part"),
        path(merge, stroke=FAINT, stroke_width=1.5), _dashed(CACHE + THICK + 2, STATES - CACHE - THICK - 4, FAINT, links),
        _dashed(CACHE, THICK, COLOURS["key"], boxes), _dashed(STATES, THICK, COLOURS["output"], boxes),
        rect(WIDTH / 2 - wide / 2, MERGED, wide, THICK, COLOURS["output"]),
        text(WIDTH / 2 + wide / 2 + 14, MERGED + 19, "one state of all keys"),
        text(WIDTH / 2 - wide / 2 - 14, MERGED + 19, f"{count} states (m, l, o), merged" if count > 1 else "nothing to merge", anchor="end"),
    ]


def _dashed(top, height, colour, dashes):
    """A band across the drawing that is cut into dashes, however many, in few bytes."""
    return line(LEFT, top + height / 2, RIGHT, top + height / 2, colour, stroke_width=height, stroke_dasharray=dashes)


def plural(count, noun):
    return f"{count:,} {noun}{'s' * (count > 1)}"
