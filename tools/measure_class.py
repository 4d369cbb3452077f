"""How long `python -m flashedu grade` takes for a class, on this machine.

    python tools/measure_class.py --students 200 --chapters 1 2 3 --jobs 2

The submissions are made up (tests/classroom/submissions.py): half of them right, the others with mistakes of the zoo, stubs, endless
loops, ended processes, cheats. Prints the time per submission and the slowest files.
"""
import argparse
import csv
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "classroom"))

import submissions  # noqa: E402  from the folder of tests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=10)
    parser.add_argument("--chapters", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", help="grade on the hidden cases of this seed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, grades = Path(scratch, "class"), Path(scratch, "grades.csv")
        kinds = submissions.write_class(folder, options.students, options.chapters)
        command = [sys.executable, "-m", "flashedu", "grade", str(folder), "--csv", str(grades), "--jobs", str(options.jobs)]
        start = time.perf_counter()
        subprocess.run(command + (["--seed", options.seed] if options.seed else []), check=True, cwd=ROOT)
        wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(grades.with_suffix(".details.csv"), encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    spent = defaultdict(float)
    for row in rows:
        spent[row["file"]] += float(row["seconds"])
    by_kind = defaultdict(list)
    for (student, number), kind in kinds.items():
        by_kind[kind].append(spent[f"{student}/{submissions.handed_out(number).name}"])
    print(f"\n{len(kinds)} notebooks of {options.students} students in {wall:.1f} s with {options.jobs} at a time: "
          f"{wall / len(kinds):.2f} s a notebook, {wall / options.students:.2f} s a student; "
          f"{(used.ru_utime + used.ru_stime) / len(kinds):.2f} s of processor time a notebook.")
    print("\nseconds in which a notebook's answers were judged, by what it is")
    for kind, seconds in sorted(by_kind.items()):
        print(f"  {kind:<10}{len(seconds):>5} notebooks, mean {sum(seconds) / len(seconds):6.2f}, most {max(seconds):6.2f}")


if __name__ == "__main__":
    main()
