"""Controls over a drawing, live in a notebook, still in a saved one, and as a page that needs nothing but a browser."""
import html
import itertools
import json
import traceback
from pathlib import Path

import ipywidgets as widgets

from flashedu.demos.page import PAGE
from flashedu.viz.figure import WORDS
from flashedu.viz.svg import INK, PAPER, SIZE, WIDTH

MOST_FRAMES = 1000
WIDE = {"description_width": "initial"}
# Letters of the controls are as large as the picture's and grow with it, handles too, and no value is cut off. A handle is at
# least 3:1 against a light and a dark page, and the one that the keys move has a ring.
SHEET = f"""<style>.flashedu-demo {{
  --flashedu-letters: max(14px, var(--flashedu-width, {WIDTH}px) * {SIZE} / {WIDTH});
  --jp-widgets-font-size: var(--flashedu-letters); --jp-widgets-inline-height: calc(1.8 * var(--flashedu-letters));
  --jp-widgets-slider-handle-size: calc(1.2 * var(--flashedu-letters)); --jp-widgets-slider-track-thickness: calc(var(--flashedu-letters) / 4);
  font-size: var(--flashedu-letters);
}}
.flashedu-demo .widget-readout {{ min-width: fit-content; flex-shrink: 0 }}
.flashedu-demo .noUi-target .noUi-handle {{ background: #1a73d0; border-color: #1a73d0 }}
.flashedu-demo .noUi-target .noUi-handle:focus {{ box-shadow: 0 0 0 .15em {PAPER}, 0 0 0 .3em {INK} }}</style>"""


def slider(description, options, value):
    """A slider over the given options: numbers, or (label, value) pairs. The description names the unit."""
    made = widgets.SelectionSlider(description=description, options=options, value=value, style=WIDE)
    letters = len(description) + max(len(label) for label, _ in choices(made))
    made.layout.width = f"{max(19, 9.5 + letters / 2)}em"  # with long words too, a quarter is left to the slider itself
    return made


def counter(description, value, most, least=0):
    """A slider over the integers from least to most."""
    return widgets.IntSlider(
        value, least, most, description=description, style=WIDE, layout=widgets.Layout(width="19em"))


def menu(description, options, value):
    """A drop-down list of the given options."""
    return widgets.Dropdown(description=description, options=options, value=value, style=WIDE, layout=widgets.Layout(width="auto"))


def switch(description, value=False):
    """A box that is ticked or not."""
    return widgets.Checkbox(value, description=description, indent=False, layout=widgets.Layout(width="auto"))


def player(counter, interval_ms=400):
    """Buttons that move a counter by themselves."""
    play = widgets.Play(counter.value, min=counter.min, max=counter.max, interval=interval_ms, show_repeat=False)
    widgets.dlink((counter, "max"), (play, "max"))
    widgets.link((counter, "value"), (play, "value"))  # here, as a link in the browser sends a second message for each key
    return play


def choices(control):
    """Every (label, value) that a control can take, in order."""
    if isinstance(control, widgets.Checkbox):
        return [("off", False), ("on", True)]
    if isinstance(control, widgets.IntSlider):
        return [(str(value), value) for value in range(control.min, control.max + 1, control.step)]
    return list(zip(control._options_labels, control._options_values))


def failure(error):
    """What is shown when a drawing could not be made: the error in a sentence, and where it happened."""
    where = html.escape("".join(traceback.format_exception(error)))
    return (
        f'<div role="alert" style="color:{WORDS};border-left:4px solid;padding-left:.6em"><strong>This picture could not be drawn. '
        f"{html.escape(type(error).__name__)}: {html.escape(str(error))}</strong><details><summary>Where it happened</summary>"
        f"<pre>{where}</pre></details></div>"
    )


class Demo(widgets.VBox):
    """Controls over a drawing: each change asks `draw(**values)` for a new `Drawing`.

    Takes the function `draw`; `controls`, widgets by the names of its arguments; `moves`, the name of the control that a
    lecturer moves, first in `to_html`; `adjust`, called with the controls before each drawing, which may move their
    limits; and `extra`, widgets beside the controls that draw nothing themselves. An error in `draw` is shown in place
    of the picture.
    """

    def __init__(self, draw, controls, moves, adjust=None, extra=()):
        self.draw, self.controls, self.moves, self._adjust = draw, dict(controls), moves, adjust
        self._drawing_now = False
        self.picture = widgets.HTML()
        self.redraw()
        for control in self.controls.values():
            control.observe(self.redraw, "value")
        row = widgets.HBox([*self.controls.values(), *extra], layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 1em"))
        super().__init__([row, self.picture, widgets.HTML(SHEET, layout=widgets.Layout(display="none"))])
        self.add_class("flashedu-demo")

    @property
    def values(self):
        """What the controls say now, by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def drawing(self):
        """The `Drawing` of the present values."""
        return self.draw(**self.values)

    def redraw(self, change=None):
        """Draw what the controls say now."""
        if self._drawing_now:  # `adjust` has moved a control
            return
        self._drawing_now = True
        try:
            if self._adjust:
                self._adjust(self.controls)
            self.picture.value = self.drawing.markup
        except Exception as error:
            self.picture.value = failure(error)
        finally:
            self._drawing_now = False

    def _repr_mimebundle_(self, **options):
        """The live demo, and a still picture for a notebook that is read without a kernel."""
        try:
            still = self.drawing._repr_mimebundle_()
        except Exception as error:
            still = {"text/html": failure(error), "text/plain": f"{type(error).__name__}: {error}"}
        return {**super()._repr_mimebundle_(**options), **still}

    def to_html(self, path, over=None):
        """Write one file that a browser shows without a network: frames drawn beforehand, under sliders.

        `over` names the controls that stay movable, by default the one that the demo is about; the others keep their
        present values. Raises ValueError for a name that is no control and for more than 1000 frames, OSError where
        the file cannot be written.
        """
        names = [self.moves] if over is None else [over] if isinstance(over, str) else list(over)
        unknown = [name for name in names if name not in self.controls]
        if unknown or not names:
            raise ValueError(f"over must name controls of this demo ({', '.join(self.controls)}), but it is {over!r}.")
        offered = {name: choices(self.controls[name]) for name in names}
        combinations = list(itertools.product(*offered.values()))
        if len(combinations) > MOST_FRAMES:
            raise ValueError(
                f"{' x '.join(str(len(found)) for found in offered.values())} positions of {', '.join(names)} are "
                f"{len(combinations):,} pictures, and a page holds {MOST_FRAMES:,}: name fewer controls.")
        fixed = self.values
        frames = [self.draw(**{**fixed, **{name: value for name, (_, value) in zip(names, chosen)}}).markup for chosen in combinations]
        controls = [
            {"label": self.controls[name].description, "options": [label for label, _ in offered[name]],
             "start": [value for _, value in offered[name]].index(fixed[name])}
            for name in names
        ]
        said = {name: next(label for label, value in choices(control) if value == fixed[name]) for name, control in self.controls.items()}
        kept = ", ".join(f"{self.controls[name].description}: {label}" for name, label in said.items() if name not in names)
        title = type(self).__name__ if not self.draw.__doc__ else self.draw.__doc__.split("\n")[0]
        data = json.dumps({"controls": controls, "frames": frames}).replace("</", "<\\/")
        Path(path).write_text(PAGE.substitute(title=html.escape(title), kept=html.escape(kept), data=data), encoding="utf-8")
