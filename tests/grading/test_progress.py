"""Progress is kept beside the exercises, survives damage, and never records a chapter's or a solution's checks."""
import contextlib
import json
import re

import numpy as np
import pytest

from flashedu import check, hint, progress
from flashedu.grading import EXERCISES
from flashedu.reference import merge_states, stable_softmax


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    folder = tmp_path / "exercises"
    folder.mkdir()
    monkeypatch.delenv("FLASHEDU_PROGRESS", raising=False)
    monkeypatch.chdir(folder)
    return folder


def wrong(x):
    return x * 0


def test_passing_is_kept(exercises):
    assert f"0 of {len(EXERCISES)}" in str(progress())
    check(wrong, "stable_softmax")
    assert "tried" in str(progress())
    check(stable_softmax)
    check(wrong, "stable_softmax")
    entry = json.loads((exercises / "progress.json").read_text())["stable_softmax"]
    assert entry["attempts"] == 3 and entry["best"] == 1.0 and entry["passed"]
    table = progress()
    assert f"1 of {len(EXERCISES)} exercises passed" in str(table) and "<table>" in table._repr_html_()
    assert [path.name for path in exercises.iterdir()] == ["progress.json"]


def test_stubs_do_not_count(exercises):
    check(lambda x: None, "stable_softmax")
    assert not (exercises / "progress.json").exists()


def test_other_folders_record_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("FLASHEDU_PROGRESS", raising=False)
    for name in ("chapters", "solutions"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        check(stable_softmax)
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_that_stops_leaves_the_old_file_alone(exercises, monkeypatch, error):
    check(merge_states)
    before = (exercises / "progress.json").read_text()

    def stops(*_):
        raise error

    monkeypatch.setattr(type(exercises), "replace", stops)
    with contextlib.suppress(KeyboardInterrupt):
        check(stable_softmax)
    assert [path.name for path in exercises.iterdir()] == ["progress.json"] and (exercises / "progress.json").read_text() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"stable_softmax": 3}', "\x00", '{"merge_states": {"best": null}}'])
def test_a_damaged_file_is_set_aside(exercises, text):
    (exercises / "progress.json").write_text(text)
    check(merge_states)
    assert (exercises / "progress.json.unreadable").read_text() == text
    assert list(json.loads((exercises / "progress.json").read_text())) == ["merge_states"]


def test_hints(capsys):
    for level in (1, 2, 3):
        hint("merge_states", level)
    hint(merge_states)
    out = capsys.readouterr().out
    assert out.count("hint 1 of 3") == 2 and "hint 3 of 3" in out


@pytest.mark.parametrize("level", [4, 1.0, True, np.ones(3)], ids=repr)
def test_there_are_three_levels(level):
    with pytest.raises(ValueError, match=rf"^level must be 1, 2 or 3, but it is {re.escape(repr(level))}\.$"):
        hint("merge_states", level)


@pytest.mark.parametrize("exercise", ["softmax", [1], {}, np.ones(3)], ids=repr)
def test_a_hint_is_for_an_exercise(exercise):
    with pytest.raises(ValueError, match=rf"^exercise must be one of .*, but it is {re.escape(repr(exercise))}\.$"):
        hint(exercise)
