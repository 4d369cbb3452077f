"""The kill matrix: every mistake of the zoo against every check of its exercise."""
from flashedu.grading.exercises import EXERCISES
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import GPU_MISTAKES, MISTAKES
from flashedu.grading.tensors.place import here


def kill_matrix(names=(), out=print):
    """Print the matrix for the named exercises (all, if none is named) and return the number of gaps.

    A row is a mistake: X where a check rejects it, [X] where that is the check which must, . where it passes. A gap is a
    mistake that its own check does not reject, or that is not called by its own name. Mistakes that only a GPU shows are
    listed as such where there is none, and are no gaps. Exercises that cannot be judged here, for want of Triton, say so.
    """
    unknown = [name for name in names if name not in EXERCISES]
    if unknown:
        raise SystemExit(f"There is no exercise called {unknown[0]!r}; the exercises are {', '.join(EXERCISES)}.")
    gaps, tried = [], []
    for name in names or EXERCISES:
        trouble = here().trouble if EXERCISES[name].call else None
        if trouble:
            out(f"\n{name}\n  {trouble[2]}")
            continue
        tried.append(name)
        checks, verdicts = EXERCISES[name].checks, [(m, judge(m.function, name)) for m in MISTAKES[name]]
        width = max(len(mistake.slug) for mistake, _ in verdicts)
        out(f"\n{name}")
        out("\n".join(f"  {number:>2} {check}" for number, check in enumerate(checks, 1)))
        out(f"  {'':<{width}} {''.join(f'{number:^4}' for number in range(1, len(checks) + 1))}  named")
        for mistake, verdict in verdicts:
            states = dict(verdict.checks)
            cells = "".join(_cell(states[check], check == mistake.caught_by) for check in checks)
            if states.get(mistake.caught_by) != "failed" or verdict.mistake != mistake.slug:
                gaps.append(f"{name}/{mistake.slug}")
            out(f"  {mistake.slug:<{width}} {cells}  {'yes' if verdict.mistake == mistake.slug else verdict.mistake}")
        for mistake in GPU_MISTAKES.get(name, ()):
            verdict = judge(mistake.function, name) if here().gpu else None
            if verdict and (dict(verdict.checks).get(mistake.caught_by) != "failed" or verdict.mistake != mistake.slug):
                gaps.append(f"{name}/{mistake.slug}")
            out(f"  {mistake.slug:<{width}} {f'named {verdict.mistake}, by {verdict.failed}' if verdict else 'GPU only: not tried here'}")
        right = judge(EXERCISES[name].reference, name)
        if not right.passed:
            gaps.append(f"{name}: the right answer is {right.state}")
    count = sum(len(MISTAKES[name]) for name in tried)
    out(f"\n{count} mistakes, exercises: {len(tried)}; " + (f"gaps: {', '.join(gaps)}" if gaps else "no gap"))
    return len(gaps)


def _cell(state, own):
    mark = {"failed": "X", "passed": ".", "not run": " "}[state]
    return f"[{mark}] " if own else f" {mark}  "
