"""Which files are submissions, whose, and of which notebook."""
import json

import pytest
from submissions import handed_out, right, stub, write

from flashedu.classroom.find import submissions
from flashedu.classroom.handed_out import read_handed_out

HANDED = [read_handed_out(handed_out(number)) for number in (1, 2, 3)]
ONE, TWO = handed_out(1).name, handed_out(2).name


@pytest.mark.parametrize("file, student", [
    (f"ada/{ONE}", "ada"),
    (f"ada/week 1/{ONE}", "ada"),
    (f"Ada Lovelace_1234_assignsubmission_file_/{ONE}", "Ada Lovelace_1234"),
    (f"Ada Lovelace_1234_assignsubmission_file_{ONE}", "Ada Lovelace_1234"),
    (f"lovelaceada_1234_99887_{ONE}", "lovelaceada_1234"),
    (f"lovelaceada_LATE_1234_99887_{ONE}", "lovelaceada_1234"),
    (f"ada-{ONE}", "ada"),
    ("ada_01.ipynb", "ada"),
    ("ada 01 final (2).ipynb", "ada"),
    (ONE, ""),
])
def test_whose_a_file_is(tmp_path, file, student):
    write(stub(1), tmp_path / file)
    (found,) = submissions(tmp_path, HANDED)
    assert (found.student, found.file, found.handed.name) == (student, file, HANDED[0].name)


@pytest.mark.parametrize("file, nb, number", [
    ("ada/02_my_version.ipynb", stub(2), 2),
    ("ada/Untitled.ipynb", right(3), 3),
    ("ada/my homework.ipynb", stub(1), 1),
    ("ada/01_wrong_name.ipynb", stub(2), 2),
    ("ada/02.ipynb", {"cells": []}, 2),
    ("ada_2024_02.ipynb", stub(2), 2),
    ("ada/Untitled.ipynb", {"cells": []}, None),
    ("ada/09_something.ipynb", {"cells": []}, None),
    ("ada/Untitled.ipynb", ["no notebook"], None),
    ("ada/Untitled.ipynb", {"cells": [{"metadata": {"nbgrader": {"grade_id": "check_merge_states"}}}]}, 2),
])
def test_which_notebook_a_file_is(tmp_path, file, nb, number):
    write(nb, tmp_path / file)
    (found,) = submissions(tmp_path, HANDED)
    assert found.handed is (None if number is None else HANDED[number - 1])


def test_what_is_no_submission_is_passed_over(tmp_path):
    for file in (f"ada/.ipynb_checkpoints/{ONE}", f"__MACOSX/ada/._{ONE}", f"ada/._{ONE}", "ada/notes.txt"):
        write(stub(1), tmp_path / file)
    (tmp_path / "ada" / "folder.ipynb").mkdir()
    assert submissions(tmp_path, HANDED) == []


def test_they_come_by_student_and_notebook_and_their_hash_is_of_their_bytes(tmp_path):
    for file, nb in ((f"bob/{ONE}", stub(1)), (f"ada/{TWO}", stub(2)), (f"ada/{ONE}", stub(1)), (f"cyd/{ONE}", right(1)), ("bob/x.ipynb", {})):
        write(nb, tmp_path / file)
    found = submissions(tmp_path, HANDED)
    assert [one.file for one in found] == [f"ada/{ONE}", f"ada/{TWO}", f"bob/{ONE}", "bob/x.ipynb", f"cyd/{ONE}"]
    assert found[0].digest == found[2].digest != found[4].digest
    (tmp_path / "ada" / ONE).write_text(json.dumps(stub(1)) + " ")
    assert submissions(tmp_path, HANDED)[0].digest != found[0].digest
