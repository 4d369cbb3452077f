"""What a newcomer is told when the environment cannot be made, and what happens on the second run."""

import ast
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import bootstrap
import pytest
from build import ROOT


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A bootstrap whose root is an empty course in a folder with a space, and whose commands are only recorded."""
    root = tmp_path / "my course"
    root.mkdir()
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "constraints.txt").write_text("numpy==2.4.6\n")
    venv = root / ".venv"
    made = SimpleNamespace(root=root, venv=venv, stamp=venv / "installed.json", commands=[], code=0)

    def call(command, cwd, env):
        made.commands.append(" ".join(command))
        assert cwd == str(root)
        if made.code == "interrupted":
            raise KeyboardInterrupt
        if "venv" in command:
            folder = root / command[-1]
            (folder / "bin").mkdir(parents=True, exist_ok=True)
            (folder / "bin/python").touch()
        return made.code

    monkeypatch.setattr(bootstrap, "ROOT", str(root))
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))
    monkeypatch.setattr(bootstrap.subprocess, "call", call)
    return made


def sentence(verb="lab"):
    """What `install` says as it stops."""
    with pytest.raises(SystemExit) as stopped:
        bootstrap.install(verb)
    text = stopped.value.code
    assert isinstance(text, str) and "\n" not in text and text.endswith(".") and ". " not in text
    return text


def test_the_first_run_installs_and_the_second_does_nothing(machine):
    bootstrap.install("lab")
    assert machine.commands[0].endswith(f"-m venv {machine.venv}")
    assert machine.commands[1].endswith("-c constraints.txt -e .[course]")
    bootstrap.install("lab")
    assert len(machine.commands) == 2


def test_the_newest_triton_has_an_environment_of_its_own(machine):
    bootstrap.install("dev")
    made = machine.stamp.read_text()
    bootstrap.install("newest")
    venv, course, triton = machine.commands[2:]
    newest = machine.root / ".venv-newest"
    assert venv.endswith(f"-m venv {newest}")
    assert course.startswith(str(newest / "bin/python")) and course.endswith("-c constraints.txt -e .[course,dev]")
    assert triton.startswith(str(newest / "bin/python")) and triton.endswith(f"--no-deps {bootstrap.NEWEST_TRITON}")
    bootstrap.install("newest")
    assert len(machine.commands) == 5 and machine.stamp.read_text() == made


def test_another_newest_triton_is_installed_into_the_same_venv(machine, monkeypatch):
    bootstrap.install("newest")
    monkeypatch.setattr(bootstrap, "NEWEST_TRITON", "triton==9.0.*")
    bootstrap.install("newest")
    assert len(machine.commands) == 5 and machine.commands[-1].endswith("--no-deps triton==9.0.*")


def test_triton_has_no_wheel_elsewhere(machine, monkeypatch):
    elsewhere = SimpleNamespace(version_info=sys.version_info, exit=sys.exit, platform="darwin")
    monkeypatch.setattr(bootstrap, "sys", elsewhere)
    assert "Linux only" in sentence("newest")
    assert machine.commands == []


def test_jupyterlab_does_not_ask_about_news(machine):
    bootstrap.install("lab")
    settings = json.loads((machine.venv / "share/jupyter/lab/settings/overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_list_is_installed_into_the_same_venv(machine, name):
    bootstrap.install("lab")
    (machine.root / name).write_text("changed")
    bootstrap.install("lab")
    assert len(machine.commands) == 3 and "pip install" in machine.commands[2]


def test_what_the_tests_need_is_added_and_kept(machine):
    bootstrap.install("lab")
    bootstrap.install("dev")
    assert machine.commands[2].endswith("-e .[course,dev]")
    bootstrap.install("lab")
    assert len(machine.commands) == 3


@pytest.mark.parametrize("second_try", [False, True])
def test_an_interrupted_installation_starts_from_a_clean_state(machine, second_try):
    if second_try:
        bootstrap.install("lab")
        (machine.root / "constraints.txt").write_text("changed")
    machine.code = "interrupted"
    with pytest.raises(KeyboardInterrupt):
        bootstrap.install("lab")
    (machine.venv / "half").touch()
    machine.code, machine.commands = 0, []
    bootstrap.install("lab")
    assert not (machine.venv / "half").exists() and "-m venv" in machine.commands[0]
    assert machine.stamp.exists()


def test_a_course_that_was_moved_is_installed_again(machine):
    bootstrap.install("lab")
    stamp = json.loads(machine.stamp.read_text())
    machine.stamp.write_text(json.dumps({**stamp, "home": [stamp["home"][0], "/elsewhere"]}))
    bootstrap.install("lab")
    assert "-m venv" in machine.commands[2]


def test_a_python_without_venv(machine, monkeypatch):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    assert "apt install python3-venv" in sentence()


@pytest.mark.parametrize("version", [(3, 6), (3, 10), (3, 15)])
def test_a_python_that_does_not_fit(machine, monkeypatch, version):
    monkeypatch.setattr(bootstrap, "sys", SimpleNamespace(version_info=(*version, 1), exit=sys.exit))
    text = sentence()
    assert "Python 3.11 to 3.14" in text and f"this is 3.{version[1]}:" in text


def test_too_little_disk(machine, monkeypatch):
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=1.5e9))
    assert "has 1.5 GB free" in sentence()
    assert machine.commands == []


def test_a_folder_that_cannot_be_written(machine, monkeypatch):
    monkeypatch.setattr(bootstrap.os, "access", lambda path, mode: False)
    assert "cannot be written to" in sentence()


def test_an_installation_that_fails(machine):
    machine.code = 1
    assert "run the same command again" in sentence()
    assert not machine.stamp.exists()


def test_a_disk_that_fills_up_on_the_way(machine, monkeypatch):
    machine.code = 1
    free = iter([50e9, 0.2e9])
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
    assert "make room" in sentence()


def test_a_teacher_has_an_environment_of_their_own(machine):
    bootstrap.install("lab")
    bootstrap.install("lecture")
    assert machine.commands[2].endswith(f"-m venv {machine.root / '.venv-class'}")
    assert machine.commands[3].endswith("-c constraints.txt -e .[course,class]")
    bootstrap.install("browser")
    assert len(machine.commands) == 5 and machine.commands[4].endswith("-e .[class,course,dev]")
    bootstrap.install("lecture")
    assert len(machine.commands) == 5 and "class" not in json.loads(machine.stamp.read_text())["extras"]


@pytest.fixture
def debian(monkeypatch):
    """A machine without a browser, whose apt-get installs one; `commands` are those that it was given."""
    made = SimpleNamespace(programs={"apt-get": "/usr/bin/apt-get"}, commands=[], root=True, code=0)

    def call(command, env):
        assert env["DEBIAN_FRONTEND"] == "noninteractive"
        made.commands.append(command)
        if command[1] == "install" and not made.code:
            made.programs["chromium"] = "/usr/bin/chromium"
        return made.code

    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: made.programs.get(name))
    monkeypatch.setattr(bootstrap, "is_root", lambda: made.root)
    monkeypatch.setattr(bootstrap.subprocess, "call", call)
    return made


def test_debians_chromium_is_installed_once(debian):
    bootstrap.install_browser()
    assert [command[1] for command in debian.commands] == ["update", "install"] and "chromium" in debian.commands[1]
    bootstrap.install_browser()
    assert len(debian.commands) == 2 and bootstrap.browser() == "/usr/bin/chromium"


@pytest.mark.parametrize("lacking", ["root", "apt-get", "network"])
def test_a_browser_that_cannot_be_installed(debian, lacking):
    debian.root = lacking != "root"
    debian.code = lacking == "network"
    debian.programs = {} if lacking == "apt-get" else debian.programs
    with pytest.raises(SystemExit) as stopped:
        bootstrap.install_browser()
    assert "sudo apt install chromium" in stopped.value.code and stopped.value.code.endswith(".")
    assert len(debian.commands) == (lacking == "network")


def test_the_lecture_is_shown_by_voila_and_takes_its_flags(monkeypatch):
    shown = []
    monkeypatch.setattr(bootstrap, "become", shown.append)
    bootstrap.lecture(["--no-browser", "--port=8899"])
    command = shown[0]
    assert ".venv-class" in command[0] and command[1:3] == ["-m", "voila"] and command[-2:] == ["--no-browser", "--port=8899"]
    assert (ROOT / command[3]).exists()
    assert any(re.fullmatch(r"--MappingKernelManager\.cull_idle_timeout=[1-9]\d*", flag) for flag in command), "kernels of pages left behind stay"
    assert not any("cull_connected" in flag for flag in command), "an open page that nobody touches would lose its kernel"


def test_a_class_is_laid_out_by_the_teachers_python(monkeypatch):
    run = []
    monkeypatch.setattr(bootstrap, "become", run.append)
    bootstrap.course(["../my class"])
    assert ".venv-class" in run[0][0] and run[0][1:] == ["-m", "flashedu", "class", "../my class"]


@pytest.mark.parametrize("place, says", [
    ("file", "file is no folder that can be written to"), ("full", "is not empty: name a folder"), ("file/sub", "file is no folder that can be written to"), (None, "Name one folder"),
    ("--help", "Name one folder"), ("dangling", "dangling is no folder that can be written to"), ("my course", "inside the course"), ("my course/.venv-class/x", "inside the course"),
])
def test_a_place_that_cannot_hold_a_course_is_refused_before_anything_is_installed(machine, tmp_path, monkeypatch, place, says):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "full" / "of").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.check_course([place] if place else [])
    text = stopped.value.code
    assert says in text and text.endswith(".") and "\n" not in text


@pytest.mark.parametrize("place", ["new", "new/newer", "empty", "~/new"])
def test_a_place_that_can_is_not(machine, tmp_path, monkeypatch, place):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert bootstrap.check_course([place]) == str(tmp_path / place.replace("~", "home"))


def test_the_place_is_looked_at_first(tmp_path):
    shutil.copytree(ROOT / "tools", tmp_path / "course" / "tools")
    (tmp_path / "file").touch()
    done = subprocess.run([sys.executable, "course/tools/bootstrap.py", "class", "file"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "" and not (tmp_path / "course" / ".venv-class").exists()
    assert done.stderr == f"{tmp_path / 'file'} is no folder that can be written to: name another place for the course.\n"


def test_an_old_python_can_read_the_file():
    ast.parse((ROOT / "tools/bootstrap.py").read_text(), feature_version=(3, 6))


def test_the_sentence_reaches_the_terminal_without_a_traceback(tmp_path):
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    script = "import runpy, sys; sys.version_info = (3, 9, 2); sys.argv = ['bootstrap.py', 'lab']; "
    script += f"runpy.run_path({str(tmp_path / 'tools/bootstrap.py')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("The course needs Python 3.11 to 3.14 and this is 3.9:")
    assert len(done.stderr.splitlines()) == 1
