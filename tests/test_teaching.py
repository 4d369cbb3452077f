"""The page for instructors says what there is: exercises and their points, states, commands, and the container's set-up."""
import argparse
import json
import re
from pathlib import Path

from flashedu.classroom.many import add_arguments
from flashedu.classroom.one import STATES
from flashedu.grading import EXERCISES
from flashedu.grading.verdict import LOOK

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/teaching.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def table(head):
    """The rows of the table whose first cell is `head`, as lists of cells."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_exercise_has_its_point_in_its_chapter():
    found = {}
    for chapter, _, exercises, _ in table("chapter"):
        names = re.findall(r"`(\w+)`", exercises)
        assert not names or f"({len(names)})" in exercises
        found.update(dict.fromkeys(names, int(chapter.split(".")[0])))
    assert found == {name: exercise.chapter for name, exercise in EXERCISES.items()}


def test_every_state_is_explained():
    assert [state for state, _ in table("state")] == list(LOOK)
    assert [state for state in STATES if f"*{state}*" not in PAGE] == ["graded", "not graded"]


def test_the_commands_exist():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    lines = [line for line in PAGE.splitlines() if "flashedu grade" in line or "`--" in line]
    used = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert {"--csv", "--seed", "--similar", "--gradescope"} <= used <= {option for action in parser._actions for option in action.option_strings}
    verbs = set(re.findall(r"`?make ([a-z]+)", " ".join(line for line in PAGE.splitlines() if "`make" in line or line.startswith(("make", "docker")))))
    assert {"class", "dev", "lab", "lecture"} <= verbs and all(re.search(rf"^{verb}:", MAKEFILE, re.M) for verb in verbs)


def test_the_container_is_set_up_by_the_makefile():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    for command in (container["postCreateCommand"], container["postAttachCommand"]):
        verb = re.match(r"make (\w+)", command)[1]
        assert re.search(rf"^{verb}:", MAKEFILE, re.M)
    port = str(container["forwardPorts"][0])
    assert f"--port={port}" in container["postAttachCommand"] and port in container["portsAttributes"]
