"""Measures how long a demo of the lecture notebook takes from a key press to changed pixels, in real JupyterLab.

    make test-browser                             once, for .venv-class and Chromium
    .venv-class/bin/python tools/measure_demos.py

Prints a table: for each demo the median and the worst of 25 presses of an arrow key on its main slider. The page itself
takes the times: from its keydown event until the frame with the changed picture has been drawn.
"""

import statistics
import sys

import lab_in_browser
from lab_in_browser import LECTURE, LiveDemo, Notebook

from flashedu import demos

PRESSES = 25
BUDGET_MS = 50
SCREEN = {"width": 1280, "height": 720}

# Resolves with the milliseconds when a key has been pressed, the picture has changed, and the next frame has been drawn: a
# message that is sent while a frame is prepared arrives when that is done.
TIMED = """root => {
  window.pressed = new Promise(resolve => {
    let start = null;
    const watcher = new MutationObserver(() => {
      if (start === null) return;
      watcher.disconnect();
      requestAnimationFrame(() => {
        const drawn = new MessageChannel();
        drawn.port1.onmessage = () => resolve(performance.now() - start);
        drawn.port2.postMessage(null);
      });
    });
    watcher.observe(root.querySelector('figure').parentElement, { childList: true, subtree: true, characterData: true });
    root.addEventListener('keydown', () => { start = performance.now(); }, { capture: true, once: true });
  });
}"""


def measured_ms(demo):
    """The times of some presses after two that are not counted."""
    times = []
    demo.handle.focus()
    for key in demo.steps(PRESSES + 2):
        demo.root.evaluate(TIMED)
        demo.root.page.keyboard.press(key)
        times.append(demo.root.page.evaluate("window.pressed"))
        demo.root.page.wait_for_timeout(60)  # as a hand does, no press while the last one is being drawn
    return times[2:]


def main():
    print(f"{'demo':16} {'median':>8} {'worst':>8}   (ms from key press to changed pixels; the median's budget is {BUDGET_MS} ms)")
    medians = []
    with lab_in_browser.jupyterlab(LECTURE.parent) as address, lab_in_browser.chromium() as chromium:
        notebook = Notebook(chromium.new_page(viewport=SCREEN)).open(address(LECTURE.name)).run_all()
        for name in lab_in_browser.names():
            own = getattr(demos, name)()
            root = notebook.cell(name).locator(".flashedu-demo")
            times = measured_ms(LiveDemo(root, list(own.controls).index(own.moves)))
            medians.append(statistics.median(times))
            print(f"{name:16} {medians[-1]:8.1f} {max(times):8.1f}", flush=True)
    return int(max(medians) > BUDGET_MS)


if __name__ == "__main__":
    sys.exit(main())
