"""What a check answers, as text and as a card."""
import html
import sys
from dataclasses import dataclass, field

LOOK = {  # a mark and a colour for each state; the state also stands there as a word
    "passed": ("✓", "#1a7f37"),
    "wrong": ("✗", "#b3261e"),
    "error": ("!", "#b3261e"),
    "not attempted": ("○", "#6e6e6e"),
    "skipped": ("–", "#6e6e6e"),
}


@dataclass
class Verdict:
    """The answer of a check.

    exercise: its name. state: one of the keys of LOOK. score: in [0, 1]. checks: (name, state) pairs, where state is passed,
    failed or not run. failed: the check that failed first, or None. mistake: the slug of the mistake in the zoo that the
    answer behaves like, or None. message: what the learner is told, in paragraphs. seconds: how long the check took.
    """

    exercise: str
    state: str
    score: float
    message: str
    checks: tuple = ()
    failed: str = None
    mistake: str = None
    seconds: float = 0.0
    shown_in: int = field(default=None, repr=False, compare=False)  # the notebook's execution count when it was last shown

    @property
    def passed(self):
        return self.state == "passed"

    def __str__(self):
        lines = [f"{LOOK[self.state][0]} {self.exercise}: {self.state}", self.message]
        if self.checks:
            lines.append("Checks (✓ passed, ✗ failed, ○ not run): " + " | ".join(f"{_mark(state)} {name}" for name, state in self.checks))
        return "\n".join(lines)

    def __repr__(self):
        mistake = f", mistake={self.mistake!r}" if self.mistake else ""
        return f"Verdict({self.exercise!r}, {self.state!r}, score={self.score:.2f}{mistake})"

    def _repr_html_(self):
        mark, colour = LOOK[self.state]
        paragraphs = "".join(_paragraph(text) for text in self.message.split("\n\n"))
        marks = "".join(
            f'<span style="display:inline-block;margin-right:1.2em">{_mark(state)} {html.escape(name)}</span>' for name, state in self.checks
        )
        return (
            f'<div style="border:1px solid {colour};border-left:6px solid {colour};border-radius:4px;padding:.6em 1em;max-width:60em;'
            'color:var(--jp-ui-font-color1,inherit)">'
            f'<div style="font-weight:600"><span style="background:{colour};color:#fff;border-radius:3px;padding:0 .5em;margin-right:.6em">'
            f"{mark} {self.state}</span><code>{html.escape(self.exercise)}</code></div>{paragraphs}"
            f'<div style="font-size:90%;margin-top:.6em" title="✓ passed, ✗ failed, ○ not run">{marks}</div></div>'
        )

    def show(self):
        """Show the card in a notebook, or print the text elsewhere."""
        if _notebook() is not None:
            self.shown_in = _notebook().execution_count
        show(str(self), self._repr_html_())

    def _ipython_display_(self):
        """As the value of a cell: nothing if the same cell has shown it already, so that `check(fn)` gives one card."""
        notebook = _notebook()
        if notebook is None:
            print(repr(self))
        elif notebook.execution_count != self.shown_in:
            self.show()


def show(text, markup):
    """Show HTML in a notebook, or print the text elsewhere."""
    if _notebook() is None:
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": markup}, raw=True)


def _notebook():
    """The shell of the running notebook, or None."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if shell is not None and shell.has_trait("kernel") else None


def _mark(state):
    return {"passed": "✓", "failed": "✗", "not run": "○"}[state]


def _paragraph(text):
    """Paragraphs that start with two spaces are code."""
    if text.startswith("  "):
        return f'<pre style="margin:.4em 0;white-space:pre-wrap;color:inherit;background:none">{html.escape(text)}</pre>'
    return f'<p style="margin:.4em 0">{html.escape(text)}</p>'
