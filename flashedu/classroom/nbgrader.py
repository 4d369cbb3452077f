"""nbgrader's autograde with this engine: submissions are judged as by `python -m flashedu grade`, and nbgrader keeps the grades.

nbgrader runs a notebook's own cells and believes what they print, so a submission that overwrites `check` gets what it likes. And it
stops for the whole class where somebody has copied a check cell. A course's nbgrader_config.py has two preprocessors of these instead.
"""
import functools
import json
from pathlib import Path

from flashedu.classroom.one import grade_notebook

CHECK = "check_"  # a check cell's grade_id is this and the function's name


def restorer(course):
    """A preprocessor for c.Autograde.sanitize_preprocessors: marks cells as they are marked in the course folder's release/."""
    return functools.partial(_restored, Path(course))


def grader(course):
    """A preprocessor for c.Autograde.autograde_preprocessors: judges by the seed.txt and the release/ of the course folder."""
    return functools.partial(_graded, Path(course))


def _restored(course, nb, resources):
    """The last cell of each grade_id has nbgrader's metadata of release/, and no other cell has any; checks that are missing come at the end."""
    handed_out = _handed_out(course, nb, resources)
    missing = {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in handed_out["cells"] if "nbgrader" in cell["metadata"]}
    for cell in reversed(nb["cells"]):
        marked = missing.pop(cell["metadata"].pop("nbgrader", {}).get("grade_id"), None)
        if marked is not None:
            cell["metadata"]["nbgrader"] = marked["metadata"]["nbgrader"]
    for grade_id, cell in missing.items():
        if cell["metadata"]["nbgrader"]["grade"]:
            cell.update(id=grade_id, source="".join(cell["source"]))
            if nb["nbformat_minor"] < 5:
                del cell["id"]  # cells had none then
            nb["cells"].append(cell)
    return nb, resources


def _graded(course, nb, resources):
    """The notebook with the outputs that its check cells should have."""
    seed = (course / "seed.txt").read_text(encoding="utf-8").strip()
    graded = grade_notebook(nb, _handed_out(course, nb, resources), seed)
    skipped = [verdict.message for verdict in graded.exercises if verdict.state == "skipped"]
    if graded.state == "not graded" or skipped:
        raise RuntimeError(graded.reason or skipped[0])
    verdicts = {CHECK + verdict.exercise: verdict for verdict in graded.exercises}
    for cell in nb["cells"]:
        about = cell["metadata"].get("nbgrader", {})
        if about.get("grade") and cell["cell_type"] == "code":
            if about["grade_id"] not in verdicts:
                raise ValueError(f"The graded cell {about['grade_id']} is not one of {', '.join(verdicts)}, which are all that is judged here.")
            cell["outputs"] = _outputs(type(nb), verdicts[about["grade_id"]])
    return nb, resources


def _handed_out(course, nb, resources):
    """The notebook of release/, made of the same kind of dict as nb."""
    which = resources["nbgrader"]
    path = course / "release" / which["assignment"] / f"{which['notebook']}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"), object_hook=type(nb))


def _outputs(node, verdict):
    """A card, which nbgrader passes over, and a built-in float, which it takes as the points."""
    card = node({"text/plain": str(verdict), "text/html": verdict._repr_html_()})
    number = node({"text/plain": repr(float(verdict.score))})
    shown = node(output_type="display_data", data=card, metadata=node())
    return [shown, node(output_type="execute_result", data=number, metadata=node(), execution_count=None)]
