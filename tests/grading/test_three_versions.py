"""Chapter 6: counts that rounding cannot change, ranges of bytes, and what must hold whatever random signs somebody draws."""
import numpy as np
import pytest
import right_answers_chapter_6 as right

from flashedu import cost, exactness
from flashedu.grading import three_versions as six
from flashedu.grading.cases import CASES
from flashedu.grading.exercises import EXERCISES
from flashedu.grading.judging import judge
from flashedu.reference import fa1_on_machine, lazy_attention, online_attention, rotate, tiled_on_machine

LAZY = [case for case in CASES["lazy_attention"] if case.memory_limit_bytes is None]


def name(case):
    return f"{case.check}-{case.params['kind']}-{case.params['seed']}"


@pytest.mark.parametrize("case", LAZY, ids=name)
def test_rounding_does_not_decide_whether_a_row_is_rescaled(case):
    """Every rise is farther from the threshold than rounding reaches, unless scores and threshold have no rounding at all."""
    q, k, _, block_size, threshold = case.make(**case.params)
    delta = exactness.forward_errors(q, k, np.ones_like(k)).delta
    s = exactness.scores(q, k)
    nearest = np.inf
    for i, row in enumerate(s):
        tops = [row[j : j + block_size].max() for j in range(0, len(row), block_size)]
        reference = tops[0]
        for top in tops[1:]:
            nearest = min(nearest, abs(top - reference - threshold) / delta[i] if delta[i] else np.inf)
            reference = top if top - reference > threshold else reference
    if case.check == "exactly the threshold":
        assert np.array_equal(s, np.round(s)) and (case.params["kind"] == "uniform" or nearest == 0)
    else:
        assert nearest > 10


def test_some_case_of_every_kind_rescales():
    counts = {name(case): lazy_attention(*case.make(**case.params))[1] for case in LAZY}
    assert sum(count > 0 for count in counts.values()) >= 12
    assert all(count == 0 for key, count in counts.items() if key.startswith(("one block", "rises below", "falling", "block longer")))


def test_online_attention_with_a_count_passes_at_threshold_0_only():
    def ordinary(q, k, v, block_size, threshold):
        return online_attention(q, k, v, block_size), lazy_attention(q, k, v, block_size, 0)[1]

    verdict = judge(ordinary, "lazy_attention")
    assert dict(verdict.checks)["threshold 0"] == "passed" and verdict.mistake == "threshold-ignored"


@pytest.mark.parametrize(
    "result, check, words",
    [
        (lambda o, n: o, "type", "It must return (o, rescalings), but it returned an object of type numpy.ndarray."),
        (lambda o, n: None, "type", "it returned None"),
        (lambda o, n: (o, n, n), "type", "a tuple of length 3"),
        (lambda o, n: (o, None), "type", "rescalings must be a whole number, but it is None."),
        (lambda o, n: (o, float(n)), "type", "rescalings must be a whole number, but it is 0.0, a float"),
        (lambda o, n: (o, np.full(len(o), n)), "shape", "rescalings must be one whole number, but it has shape (2,)."),
        (lambda o, n: (o.tolist(), n), "type", "o must be a NumPy array"),
        (lambda o, n: (n, o), "shape", "o must have shape"),
    ],
)
def test_odd_results_of_lazy_attention(result, check, words):
    verdict = judge(lambda *args: result(*lazy_attention(*args)), "lazy_attention")
    assert (verdict.state, verdict.failed) == ("wrong", check) and words in verdict.message


def test_only_a_missing_count_is_called_so():
    slugs = [judge(lambda *args, r=r: r(*lazy_attention(*args)), "lazy_attention").mistake
             for r in (lambda o, n: o, lambda o, n: None, lambda o, n: (o, n, n), lambda o, n: [o])]
    assert slugs == ["count-missing", None, None, None]


# fa1_on_machine


@pytest.mark.parametrize("case", [case for case in CASES["fa1_on_machine"] if case.check == "bytes"], ids=name)
def test_the_range_of_bytes_is_that_of_the_fine_print(case):
    machine, block_q, block_k = case.make(**case.params)
    (n_q, d), n_k = machine.shape("q"), machine.shape("k")[0]
    (_, read), (_, written), _ = six.fa1_bytes(machine, block_q, block_k)
    assert (read.high, written.high) == cost.fa1_traffic(n_q, n_k, d, block_q, block_k, 4)
    tiles = -(-n_k // block_k)
    assert read.low == 4 * (2 * n_k * d + tiles * n_q * d + (tiles - 1) * n_q * d)
    assert written.low == 4 * (tiles * n_q * d + n_q)
    assert 0 < read.low < read.high and 0 < written.low < written.high
    assert 4 * n_q * d > machine.sram_bytes  # nobody can keep o in SRAM from one tile of keys to the next


def test_both_ends_of_the_range_are_reached():
    case = next(case for case in CASES["fa1_on_machine"] if case.check == "bytes")
    traffic = {}
    for fn in (fa1_on_machine, right.least_traffic):
        machine, *blocks = case.make(**case.params)
        fn(machine, *blocks)
        traffic[fn] = machine.read_bytes, machine.written_bytes
    (_, read), (_, written), _ = six.fa1_bytes(machine, *blocks)
    n_q, tiles = machine.shape("q")[0], -(-machine.shape("k")[0] // blocks[1])
    assert traffic[fa1_on_machine] == (read.high, written.high)
    # lse is the state there: it is read for all tiles of keys but the first, and written once for each
    assert traffic[right.least_traffic] == (read.low + 4 * (tiles - 1) * n_q, written.low + 4 * (tiles - 1) * n_q)


def test_version_2_is_told_to_be_version_2():
    def queries_outside(machine, block_q, block_k):
        tiled_on_machine(machine, block_q, block_k)

    verdict = judge(queries_outside, "fa1_on_machine")
    assert verdict.failed == "bytes" and "Fewer means" in verdict.message and "as in version 2" in verdict.message
    assert [check for check, state in verdict.checks if state == "failed"] == ["bytes"]


# rotate


@pytest.mark.parametrize(
    "result, check, words",
    [
        (lambda q, k: q, "type", "It must return (q', k'), but it returned an object of type numpy.ndarray."),
        (lambda q, k: None, "type", "It must return (q', k'), but it returned None."),
        (lambda q, k: (q, k, q, k, q, k, q), "type", "a tuple of length 7"),
        (lambda q, k: (q, None), "type", "k' must be a NumPy array, but it is None"),
        (lambda q, k: (q.tolist(), k), "type", "q' must be a NumPy array"),
        (lambda q, k: (q, k.T), "shape", "k' must have shape (4, 8), but it has (8, 4)."),
        (lambda q, k: (q.astype(complex), k), "dtype", "q' must have the inputs' dtype"),
        (lambda q, k: (q, np.float64(1) * k.astype(np.float64)), "dtype", "k' must have the inputs' dtype"),
        (lambda q, k: (q * np.nan, k), "products and lengths", "q'[0, 0] is nan"),
        (lambda q, k: (2 * q, k / 2), "products and lengths", "q' q'T[0, 0] is"),
    ],
)
def test_odd_results_of_rotate(result, check, words):
    verdict = judge(lambda q, k, seed: result(*rotate(q, k, seed)), "rotate")
    assert (verdict.state, verdict.failed) == ("wrong", check) and words in verdict.message, verdict.message


OTHER_GENERATORS = {
    "RandomState": lambda seed, d: np.random.RandomState(seed).randint(0, 2, d) * 2 - 1,
    "uniform numbers": lambda seed, d: np.sign(np.random.default_rng([seed, 7]).random(d) - 0.5),
    "Python's": lambda seed, d: np.array([__import__("random").Random(seed * 1000 + i).choice((-1, 1)) for i in range(d)]),
}
WRONG = {
    "keys-not-rotated": lambda q, k, r, s, h: (q * s @ h, k.copy()),
    "not-normalised": lambda q, k, r, s, h: (q * s @ h * len(s) ** 0.5, k * s @ h * len(s) ** 0.5),
    "divided-by-d": lambda q, k, r, s, h: (q * s @ h / len(s) ** 0.5, k * s @ h / len(s) ** 0.5),
    "other-signs-for-keys": lambda q, k, r, s, h: (q * s @ h, k * r @ h),
    "no-signs": lambda q, k, r, s, h: (q @ h, k @ h),
    "signs-only": lambda q, k, r, s, h: (q * s, k * s),
    "signs-after": lambda q, k, r, s, h: (q @ h * s, k @ h * s),
}


@pytest.mark.parametrize("signs", OTHER_GENERATORS.values(), ids=OTHER_GENERATORS)
@pytest.mark.parametrize("slug", [*WRONG, None])
def test_mistakes_are_named_whatever_generator_somebody_uses(slug, signs):
    def answer(q, k, seed):
        d = q.shape[1]
        s, r = (signs(number, d).astype(q.dtype) for number in (seed, seed + 10**6))
        h = (right.hadamard(d) / np.sqrt(d)).astype(q.dtype)
        q, k = np.ascontiguousarray(q), np.ascontiguousarray(k)
        return WRONG[slug](q, k, r, s, h) if slug else (q * s @ h, k * s @ h)

    verdict = judge(answer, "rotate")
    assert verdict.mistake == slug and verdict.passed == (slug is None), str(verdict)


def test_an_orthogonal_matrix_that_is_no_hadamard_matrix_is_told_what_was_asked():
    def dense(q, k, seed):
        matrix = np.linalg.svd(np.random.RandomState(seed).rand(q.shape[1], q.shape[1]))[0].astype(q.dtype)
        return q @ matrix, k @ matrix

    verdict = judge(dense, "rotate")
    assert verdict.mistake == "dense-orthogonal" and "Asked for are random signs, then a Hadamard matrix" in verdict.message
    assert verdict.state == "wrong" and verdict.score > 0.8


def test_the_largest_allowed_elements_leave_room():
    """Half of the row (more where D is small) for an outlier, three quarters for equal elements: far above what signs give."""
    for case in CASES["rotate"]:
        if case.check in ("outliers are spread", "equal elements are spread"):
            q, k, _ = case.make(**case.params)
            expected, outputs = EXERCISES["rotate"].compared(case.check)
            limits = [bound.high for _, bound in expected(q, k, 0)[2:]]
            largest = np.max([outputs((q, k), rotate(q, k, seed))[2:] for seed in range(200)], axis=0)
            assert (largest < 0.8 * np.array(limits)).all()
            assert (np.abs(np.concatenate([q, k]) @ right.hadamard(q.shape[1])).max() / q.shape[1] ** 0.5 > limits[0]) == (case.check[0] == "e")


@pytest.mark.parametrize("bound, value, ratio", [
    (six._range(3, 5), [2, 3, 5, 6], [np.inf, 0, 0, np.inf]),
    (six._range(low=3), [2, 3, 10**12], [np.inf, 0, 0]),
    (six._range(high=4.5), [4.5, 4.6, np.nan, -9.0], [0, np.inf, np.inf, 0]),
])
def test_ranges(bound, value, ratio):
    assert np.array_equal([bound.ratio(np.array(x)) for x in value], ratio)


def test_ranges_in_words():
    words = [str(six._range(*limits)) for limits in ((3000, 5000), (3000, None), (None, 4.5))]
    assert words == ["3,000 to 5,000", "at least 3,000", "at most 4.5"]
