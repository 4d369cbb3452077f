"""Make an environment and install the course into it, then open what a reader sees or leave it for the tests.

    python3 tools/bootstrap.py lab [flags for JupyterLab]     what it takes to read the course, and JupyterLab
    python3 tools/bootstrap.py dev                            what it takes to build and test it as well
    python3 tools/bootstrap.py newest                         the same in .venv-newest, with the newest Triton
    python3 tools/bootstrap.py lecture [flags for Voilà]      what a teacher needs, in .venv-class, and the lecture demos
    python3 tools/bootstrap.py class DIR                      the same, and an nbgrader course in the folder DIR
    python3 tools/bootstrap.py test-class                     the same with the tests' packages
    python3 tools/bootstrap.py browser                        the same, and Chromium

Uses the standard library only, and syntax that Python 3.6 parses, so that an old one can tell its owner what is missing.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENVS = {  # .venv is the learner's, and has nothing of the teacher's
    "lab": ".venv",
    "dev": ".venv",
    "newest": ".venv-newest",
    "lecture": ".venv-class",
    "class": ".venv-class",
    "test-class": ".venv-class",
    "browser": ".venv-class",
}
EXTRAS = {
    "lab": ["course"],
    "dev": ["course", "dev"],
    "newest": ["course", "dev"],
    "lecture": ["course", "class"],
    "class": ["course", "class"],
    "test-class": ["course", "class", "dev"],
    "browser": ["course", "class", "dev"],
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NEWEST_TRITON = "triton==3.9.*"
OLDEST, NEWEST = (3, 11), (3, 14)  # between them, every version in constraints.txt has a wheel
NEEDED_GB = 8 if sys.platform == "linux" else 3  # on Linux torch brings the CUDA libraries
QUIET = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def check_machine():
    """Stop with one sentence if this Python cannot make the environment, or not here."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        oldest, newest, this = ("{}.{}".format(*version) for version in (OLDEST, NEWEST, sys.version_info))
        sys.exit(
            f"The course needs Python {oldest} to {newest} and this is {this}: install one of those and name it, as "
            f"in `make lab PYTHON=python{newest}`."
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            "This Python cannot make virtual environments: on Debian or Ubuntu run `sudo apt install python3-venv`, "
            "then the same command again."
        )
    if not os.access(ROOT, os.W_OK):
        sys.exit(f"The folder {ROOT} cannot be written to: copy the course to a folder of yours.")


def check_disk(needed_gb):
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < needed_gb:
        sys.exit(
            f"The disk of {ROOT} has {free_gb:.1f} GB free and the installation needs {needed_gb} GB: make room, then "
            "run the same command again."
        )


def digest(*more):
    """Changes when something that is installed may have changed."""
    sha = hashlib.sha256("".join(more).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            sha.update(file.read())
    return sha.hexdigest()


def python_of(venv):
    return os.path.join(venv, "Scripts", "python.exe") if os.name == "nt" else os.path.join(venv, "bin", "python")


def stamp_of(venv):
    return os.path.join(venv, "installed.json")  # written last: without it, the environment was left half made


def read_stamp(venv):
    try:
        with open(stamp_of(venv)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def check_course(flags):
    """The whole path of DIR; stops with one sentence, before anything is installed for it, if there can be no course in it."""
    if len(flags) != 1 or flags[0].startswith("-"):
        sys.exit("Name one folder that does not exist yet, as in `python3 tools/bootstrap.py class ../my-class`.")
    folder = os.path.abspath(os.path.expanduser(flags[0]))
    if os.path.join(folder, "").startswith(os.path.join(ROOT, "")):
        sys.exit(f"{folder} lies inside the course that students see, and the class has the hidden cases: name a place outside, as in ../my-class.")
    there = folder
    while not os.path.lexists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.R_OK | os.W_OK):
        sys.exit(f"{there} is no folder that can be written to: name another place for the course.")
    if there == folder and os.listdir(folder):
        sys.exit(f"{folder} is not empty: name a folder that does not exist yet.")
    return folder


def run(venv, *command):
    """Run a command in the root, with its temporary files on the disk that was checked."""
    code = subprocess.call(command, cwd=ROOT, env=dict(os.environ, TMPDIR=venv))
    if code:
        check_disk(1)
        sys.exit("The installation stopped at the error above: when it is mended, run the same command again.")


def install(verb):
    """Bring the verb's environment up to date with pyproject.toml and constraints.txt; does nothing if it is."""
    venv, extras = os.path.join(ROOT, VENVS[verb]), EXTRAS[verb]
    python, newest = python_of(venv), [NEWEST_TRITON] if verb == "newest" else []
    home = [list(sys.version_info[:2]), ROOT]
    stamp = read_stamp(venv)
    reuse = stamp.get("home") == home and os.path.exists(python)
    if reuse:
        extras = sorted(set(extras) | set(stamp["extras"]))
        if stamp == {"home": home, "extras": extras, "digest": digest(*newest)}:
            return
    check_machine()
    if newest and sys.platform != "linux":
        sys.exit(f"Triton has wheels for Linux only, so there is no {VENVS[verb]} on this system.")
    if reuse:
        os.remove(stamp_of(venv))
    else:
        shutil.rmtree(venv, ignore_errors=True)
        check_disk(NEEDED_GB)
        print(f"Installing the course into {VENVS[verb]}: this takes some minutes, once.", flush=True)
        os.mkdir(venv)
        run(venv, sys.executable, "-m", "venv", venv)
    # Python compiles a file when it is first imported; to compile all ten thousand here took a third of the time
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    run(venv, *pip, "-c", "constraints.txt", "-e", f".[{','.join(extras)}]")
    if newest:  # without its dependencies: a torch for CUDA names the one Triton that it was built for
        run(venv, *pip, "--no-deps", *newest)
    settings = os.path.join(venv, "share", "jupyter", "lab", "settings")
    os.makedirs(settings, exist_ok=True)
    with open(os.path.join(settings, "overrides.json"), "w") as file:
        json.dump(QUIET, file)
    with open(stamp_of(venv), "w") as file:
        json.dump({"home": home, "extras": extras, "digest": digest(*newest)}, file)


def browser():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def install_browser():
    """Install Debian's Chromium if there is none; without root or apt-get, stop with one sentence."""
    if browser():
        return
    if is_root() and shutil.which("apt-get"):
        print("Installing Chromium, once.", flush=True)
        apt = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        if not subprocess.call(["apt-get", "update", "-q"], env=apt):
            # without the fonts that Debian only recommends, a page has no letters
            subprocess.call(["apt-get", "install", "-qy", "--no-install-recommends", "chromium", "fonts-dejavu-core"], env=apt)
    if not browser():
        sys.exit(
            "The tests in the browser need Chromium and there is none on this machine: on Debian run `sudo apt install "
            "chromium`, elsewhere put a `chromium` or `google-chrome` on the path, then run the same command again."
        )


def is_root():
    return os.name != "nt" and os.getuid() == 0


def become(command):
    """Run a command in the root in place of this program."""
    os.chdir(ROOT)
    if os.name == "nt":
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def lab(flags):
    command = [python_of(os.path.join(ROOT, VENVS["lab"])), "-m", "jupyterlab", "--ServerApp.root_dir=" + ROOT]
    command.append("--LabApp.default_url=/lab/tree/chapters/00_start_here.ipynb")
    if is_root():
        command.append("--allow-root")
    become(command + flags)


def lecture(flags):
    command = [
        python_of(os.path.join(ROOT, VENVS["lecture"])), "-m", "voila", "chapters/lecture_demos.ipynb",
        # each load of the page starts a kernel: the one that no page is connected to any more ends after an hour, in which a closed lid opens again
        "--MappingKernelManager.cull_idle_timeout=3600", "--MappingKernelManager.cull_interval=300",
    ]
    become(command + flags)


def course(flags):
    become([python_of(os.path.join(ROOT, VENVS["class"])), "-m", "flashedu", "class", *flags])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in EXTRAS:
        sys.exit(__doc__)
    if sys.argv[1] == "class":
        sys.argv[2:] = [check_course(sys.argv[2:])]
    try:
        install(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command starts again from a clean state.")
    if sys.argv[1] == "browser":
        install_browser()
    if sys.argv[1] in ("lab", "lecture", "class"):
        {"lab": lab, "lecture": lecture, "class": course}[sys.argv[1]](sys.argv[2:])
