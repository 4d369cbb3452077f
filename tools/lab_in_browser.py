"""A JupyterLab of its own and a Chromium that shows it, for tests/browser and tools/measure_demos.py."""

import ast
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import bootstrap
import nbformat
from build import ROOT

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LECTURE = ROOT / "chapters" / "lecture_demos.ipynb"
START_S = 60
RUN_S = 120  # for all cells of a notebook

# the cell that calls demos.NAME() gets the attribute data-demo=NAME
MARK = """() => {
  for (const cell of jupyterapp.shell.currentWidget.content.widgets) {
    const call = cell.model.sharedModel.source.match(/^demos\\.(\\w+)\\(/m);
    if (call) cell.node.dataset.demo = call[1];
  }
}"""
RUN = """timeout => Promise.race([
  jupyterapp.shell.currentWidget.sessionContext.ready.then(() => jupyterapp.commands.execute('notebook:run-all-cells')),
  new Promise((_, reject) => setTimeout(() => reject(new Error('The cells did not end.')), timeout)),
])"""
ERRORS = """() => jupyterapp.shell.currentWidget.content.widgets.flatMap(cell => cell.model.outputs ? cell.model.outputs.toJSON() : [])
  .filter(output => output.output_type === 'error').map(output => output.traceback.join('\\n'))"""
SHOW = """async (name) => {
  const notebook = jupyterapp.shell.currentWidget.content;
  const place = notebook.widgets.findIndex(cell => cell.node.dataset.demo === name);
  notebook.activeCellIndex = place;
  await notebook.scrollToItem(place, 'start');
}"""
EVALUATE = """async (expression) => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const reply = await kernel.requestExecute({ code: '', store_history: false, user_expressions: { expression } }).done;
  const found = reply.content.user_expressions.expression;
  return found.status === 'ok' ? found.data['text/plain'] : found.traceback.join('\\n');
}"""


def names():
    """The demos of the lecture notebook, in its order."""
    code = "\n".join(cell.source for cell in nbformat.read(LECTURE, 4).cells)
    return re.findall(r"^demos\.(\w+)\(\)$", code, flags=re.MULTILINE)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(command, address, cwd, env=None):
    """Run a server until its address answers, and end it, with all that it has started, at the end."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            for _ in range(START_S * 5):
                try:
                    urllib.request.urlopen(address, timeout=START_S).close()
                    break
                except urllib.error.HTTPError:  # it answers
                    break
                except OSError:
                    pass
                if server.poll() is not None:
                    break
                time.sleep(0.2)
            else:
                server.kill()
            if server.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not start:\n{log.read()}")
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


@contextlib.contextmanager
def jupyterlab(root):
    """Serve a folder by JupyterLab, with settings of its own; gives the function from a notebook's path to its address."""
    port, token = free_port(), secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as own:
        kept = {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
                "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_DATA_DIR": "data", "JUPYTER_CONFIG_DIR": "config"}
        env = {**os.environ, **{name: str(Path(own, folder)) for name, folder in kept.items()}}
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
                   f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
        with served(command, f"http://127.0.0.1:{port}/api", root, env):
            # a workspace for each page: none opens what another had open
            yield lambda path: f"http://127.0.0.1:{port}/lab/workspaces/{secrets.token_hex(4)}/tree/{quote(path)}?token={token}"


@contextlib.contextmanager
def chromium():
    """A Chromium without a window."""
    from playwright.sync_api import sync_playwright

    path = bootstrap.browser()
    if path is None:
        raise RuntimeError("There is no Chromium here: `make test-browser` installs it, or says how.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield browser
        browser.close()


@dataclass
class Notebook:
    """A page of JupyterLab that shows one notebook."""

    page: object

    def open(self, address):
        self.page.goto(address)
        self.page.wait_for_function("window.jupyterapp && jupyterapp.shell.currentWidget?.context?.isReady", timeout=START_S * 1000)
        self.page.evaluate("async () => { await jupyterapp.restored; jupyterapp.shell.collapseLeft(); }")
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        self.page.evaluate(MARK)
        return self

    def run_all(self):
        self.page.evaluate(RUN, RUN_S * 1000)
        if errors := self.page.evaluate(ERRORS):
            raise RuntimeError("\n".join(errors))
        return self

    def theme(self, name):
        """Change the theme to "Light" or "Dark"."""
        self.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {name}' }})")
        self.page.wait_for_function(f"document.body.dataset.jpThemeName === 'JupyterLab {name}'")

    def ask(self, expression):
        """The value of an expression in the notebook's kernel, through JSON."""
        said = self.page.evaluate(EVALUATE, f"__import__('json').dumps({expression})")
        try:
            return json.loads(ast.literal_eval(said))
        except (SyntaxError, ValueError):
            raise RuntimeError(said) from None

    def cell(self, name):
        """The cell that calls demos.NAME(), scrolled to the top of the window."""
        for _ in range(2):  # cells above it get their height as they are seen
            self.page.evaluate(SHOW, name)
            self.page.wait_for_timeout(150)
        return self.page.locator(f"[data-demo={name}]")


@dataclass
class LiveDemo:
    """A demo on a page: `root` is its widget, `moves` the place of its main control among the others."""

    root: object
    moves: int

    @property
    def picture(self):
        return self.root.locator("figure > svg")

    @property
    def handle(self):
        """What the keyboard moves of the main control."""
        control = self.root.locator(":scope > .widget-hbox").first.locator(":scope > *").nth(self.moves)
        return control.locator(".noUi-handle")

    @property
    def place(self):
        """(value, least, most) of the main slider."""
        return tuple(round(float(self.handle.get_attribute(f"aria-value{name}"))) for name in ("now", "min", "max"))

    @property
    def words(self):
        """(what is said to those who do not see the picture, the caption)"""
        return self.picture.get_attribute("aria-label"), self.root.locator("figcaption").inner_text()

    def steps(self, count):
        """So many arrow keys, to and fro within the slider's range."""
        value, least, most = self.place
        keys, step = [], 1
        for _ in range(count):
            if not least <= value + step <= most:
                step = -step
            value += step
            keys.append("ArrowRight" if step > 0 else "ArrowLeft")
        return keys

    def press(self, key):
        """Press an arrow key and wait until the picture is another."""
        before = self.picture.inner_html()
        self.handle.press(key)
        another = "([root, before]) => (picture => picture && picture.innerHTML !== before)(root.querySelector('figure > svg'))"
        self.root.page.wait_for_function(another, arg=[self.root.element_handle(), before])
