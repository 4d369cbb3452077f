"""How every figure of the course looks, and how it reaches a reader who does not see it."""
import base64
import functools
import html
import io

# One colour for one thing, in every chapter. Each is at least 3:1 against JupyterLab's light and dark background and
# at least 4.5:1 under white text.
COLOURS = {
    "query": "#0072b2",  # blue
    "key": "#b35900",  # orange
    "value": "#8558a3",  # purple
    "scores": "#8f7100",  # gold: S, and P that is made of it
    "output": "#00755e",  # green; also tiled and flash attention
    "masked": "#6e6e6e",  # grey; also what is skipped
    "hbm": "#b93a48",  # red; also naive attention, which lives there
    "sram": "#3a77b5",  # light blue
    "text": "#222222",
}
SHADE = 0.3  # opacity of "masked" as a surface: what a mask hides, and is skipped
WORDS = "var(--jp-ui-font-color1, inherit)"  # of HTML beside a picture: outside JupyterLab what the page has, be it light or dark
MARKERS = {"query": "o", "key": "s", "value": "D", "scores": "*", "output": "^", "masked": "x", "hbm": "v", "sram": "P"}
STYLE = {
    "figure.figsize": (7.5, 3.6),
    "figure.dpi": 80,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 2,
}


def drawing(function):
    """A decorator: whatever the function draws is in the course's style (artists read it when they are made)."""

    @functools.wraps(function)
    def styled(*args, **options):
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return function(*args, **options)

    return styled


def new_figure(rows=1, columns=1, **options):
    """A matplotlib Figure and its axes outside pyplot, so that nothing is shown twice; call it in a `drawing`."""
    from matplotlib.figure import Figure

    figure = Figure(**{key: value for key, value in options.items() if key in ("figsize", "dpi")}, layout="constrained")
    return figure, figure.subplots(rows, columns, **{k: v for k, v in options.items() if k not in ("figsize", "dpi")})


def small_png(png):
    """The same picture in 128 colours: less than half of the bytes."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(small, format="png", optimize=True)
    return small.getvalue()


class Picture:
    """A figure as a notebook's output: the picture, a caption, and an alternative text for those who cannot see it.

    The bundle holds text/html (a <figure>), image/png for viewers that show no HTML, and text/plain.
    """

    def __init__(self, figure, caption, alt):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png")
        self.png, self.caption, self.alt = small_png(drawn.getvalue()), caption, alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = base64.b64encode(self.png).decode()
        figure = (
            f'<figure style="margin:0"><img src="data:image/png;base64,{data}" alt="{html.escape(self.alt)}" style="max-width:100%">'
            f'<figcaption style="max-width:46em;color:{WORDS}">{html.escape(self.caption)}</figcaption></figure>'
        )
        return {"text/html": figure, "image/png": data, "text/plain": f"{self.caption}\n[{self.alt}]"}
