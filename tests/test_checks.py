# SPDX-License-Identifier: Apache-2.0
"""Argument checks: what is accepted, in which form it comes back, and what each message says."""

import array
import collections
import math
import operator
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy import _checks

V = 50257
INTEGER_DTYPES = [
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    ">i2",
    ">i4",
    ">i8",
    ">u4",
    ">u8",
    "intc",
    "longlong",
    "O",
]


def raises(error, *parts):
    """Expect the error, with these literal parts in this order in its message."""
    return pytest.raises(error, match=".*".join(re.escape(part) for part in parts))


class ArrayLike:
    """An object that only offers __array__, as a torch tensor does."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)


# ---- scalars


@pytest.mark.parametrize("value", [5, np.int8(5), np.uint64(5), np.array(5)])
def test_integer_is_returned_as_int(value):
    result = _checks.integer("top_k", value, 1, 9)
    assert result == 5
    assert type(result) is int


def test_integer_of_any_size():
    assert _checks.integer("n", 10**5000) == 10**5000
    assert _checks.integer("n", -(10**30), high=0) == -(10**30)


@pytest.mark.parametrize(
    ("value", "given_text"),
    [
        (True, "bool True"),
        (np.False_, "False"),
        (2.0, "float 2.0"),
        (np.float32(2), "float32 2.0"),
        ("2", "str '2'"),
        (b"2", "bytes b'2'"),
        ("2" * 50, "str of length 50"),
        (None, "None"),
        ([2], "list"),
        (2j, "complex 2j"),
        (np.timedelta64(2), "timedelta64"),
        (np.array([2]), "ndarray of shape [1] and dtype int64"),
        (np.array(True), "ndarray of shape [] and dtype bool"),
    ],
)
def test_integer_refuses_other_kinds(value, given_text):
    with raises(TypeError, "top_k: expected an integer >= 1, got ", given_text):
        _checks.integer("top_k", value, 1)


@pytest.mark.parametrize(
    ("low", "high", "value", "expected"),
    [
        (1, None, 0, "an integer >= 1, got 0"),
        (None, 3, 4, "an integer <= 3, got 4"),
        (1, 3, np.int64(4), "an integer from 1 to 3, got 4"),
        (1, 3, 2**400, "an integer from 1 to 3, got an integer of 401 bits"),
        (1, 3, -(2**3000), "an integer from 1 to 3, got an integer of 3001 bits"),
    ],
)
def test_integer_range(low, high, value, expected):
    with raises(ValueError, "top_k: expected " + expected):
        _checks.integer("top_k", value, low, high)


@pytest.mark.parametrize("value", [0.5, np.float16(0.5), np.float64(0.5), np.longdouble(0.5)])
def test_real_is_returned_as_float(value):
    result = _checks.real("top_p", value)
    assert result == 0.5
    assert type(result) is float


def test_real_takes_integers():
    assert _checks.real("top_p", 1) == _checks.real("top_p", np.uint8(1), positive=True) == 1.0
    assert _checks.real("top_p", 0) == 0.0
    assert _checks.real("top_p", -2) == -2.0


@pytest.mark.parametrize(
    "value", [True, np.True_, "1.0", None, [1.0], 1j, np.timedelta64(1), np.array([1.0]), b"1"]
)
def test_real_refuses_other_kinds(value):
    with raises(TypeError, "top_p: expected a finite number, got "):
        _checks.real("top_p", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400])
def test_real_is_finite(value):
    with raises(ValueError, "top_p: expected a finite number, got "):
        _checks.real("top_p", value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, -1e-300, math.nan])
def test_real_positive(value):
    with raises(ValueError, "top_p: expected a finite number > 0, got ", str(value)):
        _checks.real("top_p", value, positive=True)


def test_epsilon_survives_as_float32():
    assert _checks.epsilon("eps", 1) == 1.0
    for value in (2.0**-126, float(np.finfo(np.float32).max)):
        assert _checks.epsilon("eps", value) == value
    for value in (1e-38, 5e-324, 1e39):
        with raises(
            ValueError, "eps: expected a number within the normal range of float32, got ", str(value)
        ):
            _checks.epsilon("eps", value)


@pytest.mark.parametrize("value", ["1e-5", 0, -1.0, math.nan])
def test_epsilon_values(value):
    with raises(ValueError, "eps: expected a finite number > 0, got ", str(value)):
        _checks.epsilon("eps", value)


def test_flag():
    assert _checks.flag("bias", True) is _checks.flag("bias", np.True_) is True
    assert _checks.flag("bias", False) is _checks.flag("bias", np.False_) is False
    for value, text in [(1, "1"), (0, "0"), ("no", "str 'no'"), (None, "None"), (np.array(True), "ndarray")]:
        with raises(TypeError, "bias: expected True or False, got ", text):
            _checks.flag("bias", value)


def test_choice():
    assert _checks.choice("mode", "b", ("a", "b")) == "b"
    assert type(_checks.choice("mode", np.str_("b"), ("a", "b"))) is str
    with raises(ValueError, "mode: expected one of 'a', 'b', got str 'c'"):
        _checks.choice("mode", "c", ("a", "b"))
    for value in (None, 1, b"a", ["a"]):
        with raises(TypeError, "mode: expected one of 'a', 'b', got "):
            _checks.choice("mode", value, ("a", "b"))


def test_seed():
    assert _checks.seed(None) is None
    assert _checks.seed(0) == 0
    assert type(_checks.seed(np.uint64(2**64 - 1))) is int
    assert _checks.seed(2**200) == 2**200
    for value in (-1, np.int8(-1)):
        with raises(ValueError, "seed: expected None or an integer >= 0, got -1"):
            _checks.seed(value)
    for value in (True, 1.0, "1", [1]):
        with raises(TypeError, "seed: expected None or an integer >= 0, got "):
            _checks.seed(value)


# ---- sizes


@given(st.integers(1, 4096), st.integers(1, 5000))
def test_heads_agree_with_a_plain_search(n_embd, n_heads):
    valid = [h for h in range(1, n_embd + 1) if n_embd % h == 0 and n_embd // h <= 256]
    if n_heads in valid:
        assert _checks.heads(n_embd, n_heads) == n_embd // n_heads
        return
    nearest = [
        max((h for h in valid if h < n_heads), default=None),
        min((h for h in valid if h > n_heads), default=None),
    ]
    nearest = [h for h in nearest if h is not None]
    assert list(_checks.nearest_head_counts(n_embd, n_heads)) == nearest
    with raises(
        ValueError, "n_heads: expected ", f"got {n_heads}; nearest valid: " + " and ".join(map(str, nearest))
    ):
        _checks.heads(n_embd, n_heads)


def test_heads_of_a_huge_width_answer_at_once():
    for width in (2**30, 2**62 - 1, 10**5000):
        with raises(ValueError, "n_embd: expected a size whose weights", "got "):
            _checks.heads(width, 3)


@pytest.mark.parametrize(
    ("n_tokens", "past", "message"),
    [
        (9, 0, "tokens: 9 tokens do not fit the block_size of 8"),
        (3, 6, "tokens: 3 tokens after 6 cached do not fit the block_size of 8"),
        (1, 8, "tokens: 1 token after 8 cached does not fit the block_size of 8"),
    ],
)
def test_length_that_does_not_fit(n_tokens, past, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        _checks.length_fits("tokens", n_tokens, past, 8)


def test_length_that_fits():
    assert _checks.length_fits("tokens", 8, 0, 8) is None
    assert _checks.length_fits("tokens", 1, 7, 8) is None


# ---- token ids


def assert_is_private_copy(result, source):
    assert result.dtype == np.int64
    assert result.dtype.isnative
    assert result.flags.c_contiguous
    assert result.flags.aligned
    assert result.flags.writeable
    assert not np.shares_memory(result, source)


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("values", [[3, 0, 100], [[3, 0, 100], [1, 2, 4]]], ids=["T", "BT"])
def test_every_integer_kind_gives_the_same_ids(dtype, values):
    source = np.array(values, dtype=dtype)
    result, single = _checks.token_ids(source, V)
    assert_is_private_copy(result, source)
    assert result.tolist() == (values if source.ndim == 2 else [values])
    assert single is (source.ndim == 1)


@pytest.mark.parametrize(
    "source",
    [
        [3, 0, 100],
        (3, 0, 100),
        range(3, 6),
        [np.int64(3), np.uint64(4)],
        [np.int8(3), 4],
        [np.array(3), 4],
        array.array("H", [3, 4]),
        array.array("B", [3, 4]),
        memoryview(np.array([3, 4])),
        memoryview(np.array([3, 4], np.uint8)),
        collections.UserList([3, 0, 100]),
        collections.deque([3, 4]),
        ArrayLike([3, 4]),
    ],
)
def test_one_sequence_from_any_container(source):
    result, single = _checks.token_ids(source, V)
    assert single is True
    assert result.dtype == np.int64
    assert result.tolist() == [[int(i) for i in getattr(source, "values", source)]]


@pytest.mark.parametrize(
    "source",
    [
        [[3, 4], [5, 6]],
        ((3, 4), (5, 6)),
        [(3, 4), range(5, 7)],
        [np.array([3, 4]), [5, 6]],
        [np.array([3, 4], np.uint64), np.array([5, 6])],
        np.ma.array([[3, 4], [5, 6]]),
        ArrayLike([[3, 4], [5, 6]]),
    ],
)
def test_a_batch_from_any_container(source):
    result, single = _checks.token_ids(source, V)
    assert single is False
    assert type(result) is np.ndarray
    assert result.tolist() == [[3, 4], [5, 6]]


def test_strided_and_read_only_ids():
    source = np.arange(24).reshape(4, 6)[::-2, ::3].T
    source.flags.writeable = False
    result, single = _checks.token_ids(source, V)
    assert_is_private_copy(result, source)
    assert result.tolist() == source.tolist()
    assert single is False


def test_ids_of_a_torch_tensor():
    torch = pytest.importorskip("torch")
    assert _checks.token_ids(torch.tensor([[3, 4]], dtype=torch.int32), V)[0].tolist() == [[3, 4]]
    with raises(TypeError, "tokens: expected integer ids, got dtype float32"):
        _checks.token_ids(torch.tensor([[3.0]]), V)


@pytest.mark.parametrize("bad", [-1, V, 2**31, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("as_list", [False, True])
def test_id_outside_the_vocabulary(bad, at, as_list):
    flat = np.array([1, 2, 3, V - 1])
    flat[at] = bad
    flat_message = f"tokens: id {bad} at [{at}] is outside the vocabulary of {V}"
    with raises(ValueError, flat_message):
        _checks.token_ids(flat.tolist() if as_list else flat, V)
    batch = np.stack([[0, 1, 2, 3], flat])
    with raises(ValueError, f"tokens: id {bad} at [1, {at}] is outside the vocabulary of {V}"):
        _checks.token_ids(batch.tolist() if as_list else batch, V)


@pytest.mark.parametrize("bad", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**200])
def test_ids_beyond_64_bits_are_outside_not_negative(bad):
    for source in ([1, bad], [bad], [-1, bad][1:], np.array([1, bad], dtype=object)):
        with raises(ValueError, f"tokens: id {bad} at [{len(source) - 1}] is outside the vocabulary of {V}"):
            _checks.token_ids(source, V)
    if bad in (2**63, 2**64 - 1):
        with raises(ValueError, f"tokens: id {bad} at [0, 1] is outside the vocabulary of {V}"):
            _checks.token_ids(np.array([[0, bad]], dtype=np.uint64), V)
    with raises(ValueError, "tokens: id an integer of 3001 bits at [0] is outside the vocabulary"):
        _checks.token_ids([2**3000], V)


def test_the_first_of_several_bad_ids_is_named():
    with raises(ValueError, "tokens: id -7 at [0, 1] "):
        _checks.token_ids(np.array([[0, -7], [99999999, -1]]), V)
    with raises(ValueError, "tokens: id -7 at [1] "):
        _checks.token_ids(np.array([0, -7, 2**70], dtype=object), V)


def test_the_last_id_of_the_vocabulary_is_inside():
    assert _checks.token_ids([[0, V - 1]], V)[0].tolist() == [[0, V - 1]]
    assert _checks.token_ids([0], 1)[0].tolist() == [[0]]


@pytest.mark.parametrize(
    ("source", "given_text"),
    [
        (None, "None"),
        ("hello", "str 'hello'"),
        (b"hello", "bytes b'hello'"),
        (bytearray(b"hello"), "bytearray"),
        (1.0, "dtype float64"),
        (True, "dtype bool"),
        (object(), "object"),
        ({1, 2}, "set"),
        ({1: 2}, "dict"),
        ((i for i in [1]), "generator"),
        (np.array([1.0, 2.0]), "dtype float64"),
        (np.array([1.5], np.float16), "dtype float16"),
        (np.array([True, False]), "dtype bool"),
        (np.array([1j]), "dtype complex128"),
        (np.array(["a"]), "dtype <U1"),
        (np.array([b"a"]), "dtype |S1"),
        (np.array([1], "m8[s]"), "dtype timedelta64[s]"),
        (np.array([1], "M8[s]"), "dtype datetime64[s]"),
        (np.zeros(2, [("a", "i4")]), "dtype [('a', '<i4')]"),
        (ArrayLike([1.0]), "dtype float64"),
        ([1.0, 2.0], "float 1.0 at [0]"),
        ([1, 2.5], "float 2.5 at [1]"),
        ([[1, 2], [3, 4.0]], "float 4.0 at [1, 1]"),
        (memoryview(b"hello"), "memoryview"),
        (memoryview(bytearray(b"hello")).cast("b"), "memoryview"),
        ([1, True], "bool True at [1]"),
        (collections.UserList([1, True]), "bool True at [1]"),
        (collections.deque([True]), "bool True at [0]"),
        ([collections.UserList([1, True])], "bool True at [0, 1]"),
        ([True, False], "bool True at [0]"),
        ([[1, 2], (3, False)], "bool False at [1, 1]"),
        ([1, np.True_], "True at [1]"),
        ([np.array([1, 2]), np.array([True, False])], "bool True at [1, 0]"),
        ([1, "2"], "str '2' at [1]"),
        (["1", "2"], "str '1' at [0]"),
        ([1, None], "None at [1]"),
        ([1, 2j], "complex 2j at [1]"),
        (np.array([1, 2.0], dtype=object), "float 2.0 at [1]"),
        (np.array([1, True], dtype=object), "bool True at [1]"),
    ],
)
def test_other_kinds_are_type_errors(source, given_text):
    with raises(TypeError, "tokens: expected integer ids, got ", given_text):
        _checks.token_ids(source, V)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ([], "[0]"),
        ((), "[0]"),
        ([[]], "[1, 0]"),
        ([[], []], "[2, 0]"),
        (np.zeros((1, 0), np.int64), "[1, 0]"),
        (np.zeros((0, 3), np.int32), "[0, 3]"),
        (np.zeros((0, 3)), "[0, 3]"),
        (range(0), "[0]"),
        (np.array([], dtype=object), "[0]"),
    ],
)
def test_empty_ids(source, shape):
    with raises(ValueError, f"tokens: expected at least one token, got shape {shape}"):
        _checks.token_ids(source, V)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (5, "[]"),
        (np.int64(5), "[]"),
        (np.array(5), "[]"),
        (2**70, "[]"),
        ([[[1, 2]]], "[1, 1, 2]"),
        (np.zeros((1, 2, 3), np.int64), "[1, 2, 3]"),
        (np.zeros((0, 2, 3), np.int64), "[0, 2, 3]"),
    ],
)
def test_shape_of_ids(source, shape):
    with raises(ValueError, f"tokens: expected ids of shape [T] or [B, T], got shape {shape}"):
        _checks.token_ids(source, V)


def self_containing_list():
    values = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "source",
    [
        [[1], [2, 3]],
        [[1, 2], []],
        [1, [2]],
        [[1], 2],
        [[1, 2], [3, [4]]],
        ((1,), (2, 3)),
        [np.array([1]), np.array([2, 3])],
        [[1.0], [2.0, 3.0]],
        np.array([[1], [2, 3]], dtype=object),
        np.array([np.array([1]), np.array([2, 3])], dtype=object),
        self_containing_list(),
    ],
    ids=lambda source: str(source)[:20],
)
def test_ragged_ids_name_forward_many(source):
    with raises(ValueError, "tokens: expected ids of shape [T] or [B, T]", "forward_many"):
        _checks.token_ids(source, V)


def test_exceptions_of_hostile_objects_pass():
    class Hostile:
        def __array__(self, dtype=None, copy=None):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _checks.token_ids(Hostile(), V)


def test_another_name():
    with raises(ValueError, f"labels: id {V} at [0] is outside the vocabulary of {V}"):
        _checks.token_ids([V], V, "labels")


@given(
    st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 120)
)
def test_ids_agree_with_a_plain_loop(values, vocab_size):
    bad = [i for i, value in enumerate(values) if not 0 <= value < vocab_size]
    if not bad:
        assert _checks.token_ids(values, vocab_size)[0].tolist() == [values]
        return
    with raises(ValueError, f"id {values[bad[0]]} at [{bad[0]}] is outside the vocabulary of {vocab_size}"):
        _checks.token_ids(values, vocab_size)


# ---- sequences of different lengths


def test_sequences_of_any_lengths():
    rows = [np.array([1, 2, 3], np.uint8), [4], (5, 6), np.array([7], dtype=object), range(8, 10)]
    for sequences in (rows, tuple(rows)):
        result = _checks.token_sequences(sequences, V)
        assert [row.tolist() for row in result] == [[1, 2, 3], [4], [5, 6], [7], [8, 9]]
        assert_is_private_copy(result[0], rows[0])


def test_sequences_as_a_rectangle():
    source = np.array([[1, 2], [3, 4]])
    for sequences in (source, ArrayLike(source), source.tolist()):
        result = _checks.token_sequences(sequences, V)
        assert [row.tolist() for row in result] == [[1, 2], [3, 4]]
    assert_is_private_copy(_checks.token_sequences(source, V)[1], source)


def test_sequences_as_an_array_of_lists():
    source = np.array([[1], [2, 3]], dtype=object)
    assert [row.tolist() for row in _checks.token_sequences(source, V)] == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([], ValueError, "sequences: expected at least one sequence, got none"),
        (np.zeros((0, 3), int), ValueError, "sequences: expected at least one sequence, got none"),
        (np.zeros((2, 0), int), ValueError, "sequences[0]: expected at least one token, got shape [0]"),
        (
            np.zeros((2, 1, 1), int),
            ValueError,
            "sequences: expected a list of token id sequences, got shape [2, 1, 1]",
        ),
        (None, TypeError, "sequences: expected a list of token id sequences, got None"),
        (5, TypeError, "sequences: expected a list of token id sequences, got 5"),
        ("abc", TypeError, "sequences: expected a list of token id sequences, got str 'abc'"),
        ({1: [2]}, TypeError, "sequences: expected a list of token id sequences, got dict"),
        ([[1], []], ValueError, "sequences[1]: expected at least one token, got shape [0]"),
        ([1, 2], ValueError, "sequences[0]: expected ids of shape [T], got shape []"),
        ([[1], [[2]]], ValueError, "sequences[1]: expected ids of shape [T], got shape [1, 1]"),
        (
            [[1], [[2], [3, 4]]],
            ValueError,
            "sequences[1]: expected an array, got nested sequences of different lengths",
        ),
        ([[1], "abc"], TypeError, "sequences[1]: expected integer ids, got str 'abc'"),
        ([[1], None], TypeError, "sequences[1]: expected integer ids, got None"),
        ([[1], [2, 3.0]], TypeError, "sequences[1]: expected integer ids, got float 3.0 at [1]"),
        ([[1], [2, True]], TypeError, "sequences[1]: expected integer ids, got bool True at [1]"),
        (np.zeros((1, 2)), TypeError, "sequences[0]: expected integer ids, got dtype float64"),
        ([[1], [2, V]], ValueError, f"sequences[1]: id {V} at [1] is outside the vocabulary of {V}"),
        ([[-1], [2]], ValueError, f"sequences[0]: id -1 at [0] is outside the vocabulary of {V}"),
    ],
)
def test_sequences_refused(sequences, error, message):
    with raises(error, message):
        _checks.token_sequences(sequences, V)


def test_sequences_under_another_name():
    with raises(ValueError, "prompts[1]: id -1 at [0]"):
        _checks.token_sequences([[1], [-1]], V, name="prompts")


# ---- row numbers of an embedding


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3)])
def test_ids_of_any_shape(dtype, shape):
    source = np.full(shape, 7, dtype=dtype)
    result = _checks.ids("ids", source, 10)
    assert result.shape == shape
    assert (result == 7).all()
    assert_is_private_copy(result, source)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (10, ValueError, "ids: id 10 is outside the num_embeddings of 10"),
        ([[1, -1]], ValueError, "ids: id -1 at [0, 1] is outside the num_embeddings of 10"),
        ([[[1]], [[12]]], ValueError, "ids: id 12 at [1, 0, 0] is outside the num_embeddings of 10"),
        (np.uint64(2**63), ValueError, f"ids: id {2**63} is outside the num_embeddings of 10"),
        (2**80, ValueError, f"ids: id {2**80} is outside the num_embeddings of 10"),
        (np.zeros((2, 0), int), ValueError, "ids: expected at least one id, got shape [2, 0]"),
        ([[1], [2, 3]], ValueError, "ids: expected an array, got nested sequences of different lengths"),
        (1.0, TypeError, "ids: expected integer ids, got dtype float64"),
        (True, TypeError, "ids: expected integer ids, got dtype bool"),
        (None, TypeError, "ids: expected integer ids, got None"),
        ("a", TypeError, "ids: expected integer ids, got str 'a'"),
    ],
)
def test_ids_refused(x, error, message):
    with raises(error, message):
        _checks.ids("ids", x, 10)


# ---- rows of numbers


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", "longdouble", ">f2", ">f4", ">f8", "i1", "u2", "i8", ">i4", "u8"]
)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
def test_rows_of_every_real_kind(dtype, shape):
    source = np.arange(1, 1 + math.prod(shape)).astype(dtype).reshape(shape)
    result = _checks.rows("x", source, 3)
    assert result.dtype == np.float32
    assert result.dtype.isnative
    assert result.flags.c_contiguous
    assert result.shape == shape
    assert result.tolist() == source.tolist()


def test_rows_already_right_are_not_copied():
    source = np.ones((2, 3), np.float32)
    source.flags.writeable = False
    assert _checks.rows("x", source, 3) is source


@pytest.mark.parametrize("view", [np.s_[::2, ::2], np.s_[::-2, ::2], np.s_[:2, 1:4]])
def test_strided_rows_are_made_contiguous(view):
    source = np.arange(24, dtype=np.float32).reshape(4, 6)[view]
    result = _checks.rows("x", source, 3)
    assert result.flags.c_contiguous
    assert result.tolist() == source.tolist()


def test_misaligned_rows_are_copied():
    source = np.frombuffer(b"\0" + np.arange(3, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    assert not source.flags.aligned
    for result in (_checks.rows("x", source, 3), _checks.weight("w", source, (3,))):
        assert result.flags.aligned
        assert result.tolist() == [0, 1, 2]


def test_rows_from_lists():
    assert _checks.rows("x", [1, 2, 3], 3).tolist() == [1, 2, 3]
    assert _checks.rows("x", ((0.5, 2), (3, 4)), 2).tolist() == [[0.5, 2], [3, 4]]
    with raises(ValueError, "x: expected an array, got nested sequences of different lengths"):
        _checks.rows("x", [[1.0], [2.0, 3.0]], 2)


@pytest.mark.parametrize(
    ("x", "given_text"),
    [
        (np.ones((2, 3), bool), "dtype bool"),
        (np.ones((2, 3), complex), "dtype complex128"),
        (np.ones((2, 3), object), "dtype object"),
        (np.array([["a", "b", "c"]]), "dtype <U1"),
        (np.ones((2, 3), "m8[s]"), "dtype timedelta64[s]"),
        ([1.0, 2.0, None], "dtype object"),
        ("abc", "str 'abc'"),
        (None, "None"),
    ],
)
def test_rows_of_other_kinds(x, given_text):
    with raises(TypeError, "x: expected real numbers, got ", given_text):
        _checks.rows("x", x, 3)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (1.0, "[]"),
        (np.float32(1), "[]"),
        ([], "[0]"),
        (np.ones((0, 3)), "[0, 3]"),
        (np.ones((2, 0, 3)), "[2, 0, 3]"),
        (np.ones((3, 2)), "[3, 2]"),
        (np.ones(4), "[4]"),
    ],
)
def test_rows_of_another_shape(x, shape):
    with raises(ValueError, f"x: expected shape [..., 3] with at least one row, got shape {shape}"):
        _checks.rows("x", x, 3)


@pytest.mark.parametrize(
    "check", [lambda x: _checks.rows("x", x, 3), lambda x: _checks.weight("x", x, (2, 3))]
)
@pytest.mark.parametrize("dtype", ["f8", ">f8", "longdouble"])
def test_finite_numbers_that_overflow_float32(check, dtype):
    source = np.zeros((2, 3), dtype)
    source[1, 2] = -1e39
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(ValueError, "x: expected numbers within float32, got -1e+39 at [1, 2]"):
            check(source)
        source[1] = [np.inf, -np.inf, np.nan]
        assert np.array_equal(check(source)[1], [np.inf, -np.inf, np.nan], equal_nan=True)
        source[1] = [3.4028235e38, 1e-60, -0.0]
        assert np.signbit(check(source)[1, 2])
        assert check(source)[1, 0] == np.finfo(np.float32).max


# ---- weights


@pytest.mark.parametrize("view", [np.s_[:], np.s_[::-1], np.s_[:, ::2]])
def test_float32_weights_are_not_copied(view):
    source = np.arange(24, dtype=np.float32).reshape(4, 6)[view]
    for value in (source, source.T):
        value.flags.writeable = False
        result = _checks.weight("weight", value, value.shape)
        assert result is value
        assert result.strides == value.strides


@pytest.mark.parametrize("dtype", ["f2", "f8", "longdouble", ">f2", ">f4", ">f8"])
def test_weights_of_every_float_kind(dtype):
    source = np.arange(6).astype(dtype).reshape(2, 3)
    source[0, 0] = np.nan
    result = _checks.weight("weight", source, (2, 3))
    assert result.dtype == np.float32
    assert result.dtype.isnative
    assert np.array_equal(result, source.astype(np.float32), equal_nan=True)


def test_weights_from_lists():
    assert _checks.weight("weight", [[0.5, 1.5]], (1, 2)).tolist() == [[0.5, 1.5]]
    with raises(ValueError, "weight: expected an array, got nested sequences of different lengths"):
        _checks.weight("weight", [[1.0], [2.0, 3.0]], (2, 2))


@pytest.mark.parametrize("dtype", ["i8", "u1", "?", "c16", "O", "U3", "m8[s]"])
def test_weights_of_other_kinds(dtype):
    source = np.zeros((2, 3), dtype)
    with raises(TypeError, f"weight: expected floating-point numbers, got dtype {source.dtype}"):
        _checks.weight("weight", source, (2, 3))


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (0, 3), ()])
def test_weights_of_another_shape(shape):
    with raises(ValueError, f"weight: expected shape [2, 3], got shape {list(shape)}"):
        _checks.weight("weight", np.zeros(shape, np.float32), (2, 3))


def test_checks_never_write_to_their_input():
    for check, source in [
        (lambda x: _checks.token_ids(x, V), np.array([[1, 2]])),
        (lambda x: _checks.rows("x", x, 2), np.array([[1.0, 2.0]])),
        (lambda x: _checks.weight("x", x, (1, 2)), np.array([[1.0, 2.0]])),
    ]:
        before = source.copy()
        check(source)
        assert np.array_equal(source, before)
    assert operator.index(_checks.token_ids(np.array([7]), V)[0][0, 0]) == 7
