"""One multiprocessor's timeline under FlashAttention 2 and 3: what the tensor core waits for."""
import functools

from flashedu.cost import attention_flops
from flashedu.hardware import gpu
from flashedu.viz import schedule
from flashedu.viz.figure import COLOURS
from flashedu.viz.schedule import LOADS, MATMUL, SOFTMAX, finish, utilisation
from flashedu.viz.svg import FAINT, INK, PAPER, SIZE, Drawing, Plot, hatch, line, number, path, text

GPU = "H100 SXM"
LONG = 128  # key tiles of a long row, where start and end no longer count
LEFT, RIGHT, PITCH, BOX = 176, 940, 32, 26
HALO = {"fill": INK, "stroke": PAPER, "stroke_width": 5, "paint_order": "stroke"}  # words over lines and stripes
KINDS = {"K": ("K tile", COLOURS["key"]), "V": ("V tile", COLOURS["value"]), "S": ("S = QKᵀ", COLOURS["scores"]),
         "exp": ("softmax (exp)", "url(#flashedu-exp)"), "PV": ("PV", COLOURS["output"])}
ROWS_2 = {(LOADS, ""): "loads", (MATMUL, ""): "tensor core", (SOFTMAX, ""): "exp unit"}
ROWS_3 = {(LOADS, ""): "producer: loads", (MATMUL, "A"): "tensor core, A", (MATMUL, "B"): "tensor core, B",
          (SOFTMAX, "A"): "exp unit, A", (SOFTMAX, "B"): "exp unit, B"}


def exp_share(head_dim, name=GPU):
    """Time of the exponentials in units of the two products' time: one exp and 4 D FLOPs for each score."""
    return gpu(name).matmul_flops / (attention_flops(1, 1, head_dim) * gpu(name).exp_rate)


@functools.lru_cache(maxsize=512)
def schedules(tiles, softmax, load, stages, ping_pong, inside):
    """The jobs of version 2 and of version 3."""
    return schedule.version_2(tiles, softmax, load), schedule.version_3(tiles, softmax, load, stages, ping_pong, inside)


def overlap_drawing(softmax, load, stages, tiles, ping_pong=True, inside=False):
    """Overlap: how busy versions 2 and 3 keep the tensor core"""
    second, third = schedules(tiles, softmax, load, stages, ping_pong, inside)
    plot = Plot((LEFT, 40, RIGHT, 348), (0, max(finish(second), finish(third))), (0, 1))
    stripes, _ = hatch(COLOURS["scores"], "flashedu-exp")
    drawn = [stripes, plot.frame("time (1 = both products of one key tile at the tensor core's full rate)", "", y_ticks=[])]
    drawn += _version(plot, 42, ROWS_2, second, "Version 2: one after the other")
    drawn += _version(plot, 186, ROWS_3, third, f"Version 3: {_ways(ping_pong, inside)}")
    x = 40
    for kind, (name, fill) in KINDS.items():
        drawn += [*_boxes([(x, 420, x + 34)], kind, fill), text(x + 44, 440, name)]
        x += 70 + 10 * len(name)
    drawn.append(text(x, 440, "A, B: consumers"))
    speed_up = finish(second) / finish(third)
    drawn.append(text(40, 486, f"Version 3 is {speed_up:.2f} times as fast.", size=SIZE + 9, weight="bold"))
    long_2, long_3 = schedules(LONG, softmax, load, stages, ping_pong, inside)
    caption = (
        f"{tiles} key tiles; exp takes {softmax:.2f} of the matmuls' time. Tensor core busy {utilisation(second):.0%} in version 2 and "
        f"{utilisation(third):.0%} in version 3, done at {finish(second):.1f} and {finish(third):.1f}; over {LONG} tiles {utilisation(long_2):.1%} and "
        f"{utilisation(long_3):.1%}. A model: one block on the SM, units at full rate, of softmax only exp. Real kernels stay below it."
    )
    return Drawing("".join(drawn), 500, caption, _note(softmax, load, stages, ping_pong, inside, tiles))


def _ways(ping_pong, inside):
    """What version 3 does at the same time, in words."""
    if ping_pong:
        return "two consumers in turn, PV under softmax" if inside else "two consumers in turn"
    return "one consumer, PV under softmax" if inside else "one consumer, loads ahead"


def _version(plot, top, rows, jobs, title):
    """Title, utilisation and lanes of one version."""
    end = plot.x(finish(jobs))
    busy = f"tensor core busy {utilisation(jobs):.0%}"
    drawn = [text(8, top - 14, title, size=SIZE + 2, weight="bold", **HALO),
             text(RIGHT + 12, top - 14, busy, size=SIZE + 7, weight="bold", anchor="end", **HALO)]
    used = {(job.unit, job.consumer) for job in jobs}
    for row, (lane, label) in enumerate(rows.items()):
        y = top + row * PITCH
        drawn += [text(LEFT - 12, y + 19, label, anchor="end"),
                  path(f"M{LEFT} {y}H{number(end)}v{BOX}H{LEFT}z", stroke=FAINT)]
        if lane not in used:
            drawn.append(text(LEFT + 10, y + 19, "no second consumer"))
        for kind, (_, fill) in KINDS.items():
            here = [job for job in jobs if (job.unit, job.consumer) == lane and job.name == kind]
            drawn += _boxes([(plot.x(job.start), y, plot.x(job.stop)) for job in here], kind, fill)
            drawn += [_label(plot.x(job.start), plot.x(job.stop), y, job) for job in here]
    bottom = top + len(rows) * PITCH - PITCH + BOX
    return [*drawn, line(end, top - 4, end, bottom + 4, INK, stroke_width=2, stroke_dasharray="5 4")]


def _boxes(places, kind, fill):
    """Boxes (left, top, right) of one kind as one path; what uses V has a white line, so that colour is not alone."""
    d = "".join(f"M{number(a)} {y}H{number(b)}v{BOX}H{number(a)}z" for a, y, b in places)
    under = "".join(f"M{number(a + 3)} {y + BOX - 4}H{number(b - 3)}" for a, y, b in places if b > a + 8)
    boxes = [path(d, fill, stroke=PAPER if kind != "exp" else COLOURS["scores"], stroke_width=1)] if d else []
    return boxes + ([path(under, stroke="white", stroke_width=2)] if under and kind in ("V", "PV") else [])


def _label(left, right, y, job):
    """What a box says, as much of it as fits."""
    words = (f"{job.name} {job.tile + 1}" if job.name == "exp" else f"{job.name}{job.tile + 1}", f"{job.tile + 1}")
    fitting = next((word for word in words if 9.6 * len(word) + 1 <= right - left), None)
    if fitting is None:
        return ""
    return text((left + right) / 2, y + 18, fitting, size=16, anchor="middle", **HALO if job.name == "exp" else {"fill": "white"})


def _note(softmax, load, stages, ping_pong, inside, tiles):
    """What limits version 3, where it is not the tensor core."""
    busy = [utilisation(schedules(tiles, softmax, load, count, ping_pong, inside)[1]) for count in (stages, 2)]
    if stages == 1 and busy[1] - busy[0] > 0.005:
        return f"With one buffer each, a load waits until the tile before is released: two would keep the tensor core busy {busy[1]:.0%}."
    if max(softmax, load) > 1.01:
        unit, time = max((("exp unit", softmax), ("producer", load)), key=lambda pair: pair[1])
        return f"The {unit} is the limit: it needs {time:.2f} for a tile, so the tensor core can be busy at most {1 / time:.0%}, in any order."
    if not ping_pong and not inside:
        return "Only loads run beside the computation here; softmax and products still wait for each other."
    if stages > 2 and busy[0] == busy[1]:
        return "Two buffers would do: while one tile is used, the next one arrives."
    return ""
