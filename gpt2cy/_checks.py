# SPDX-License-Identifier: Apache-2.0
"""Every argument check and its message.

A check takes the argument's name and value and returns the value in the one form that the code below it
uses (a Python int, a private int64 array, a float32 array), or raises. TypeError means the wrong kind of
thing, ValueError the wrong value of the right kind. A message reads: name, what was expected, what was given.

Arrays of ids are copied first and checked afterwards: the compiled code indexes memory with them unchecked,
so nobody else may hold the array that was checked. Arrays of numbers are only read, hence not copied when
they have the right form already.
"""

import math
import operator
from collections.abc import Sequence

import numpy as np

MAX_HEAD_DIM = 256
MAX_BYTES = 2**63 - 1
MAX_SIDE = 2**40  # of a matrix: a product of two sides is checked by matrix_size

_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)
_FLOAT32 = np.dtype(np.float32)
_OBJECT = np.dtype(object)
_ARRAY_LIKE = ("__len__", "__array__", "__index__")
_SMALLEST_NORMAL = 2.0**-126
_LARGEST = (2.0 - 2.0**-23) * 2.0**127
_TOKENS_RAGGED = "expected ids of shape [T] or [B, T], got sequences of different lengths (use forward_many)"
_RAGGED = "expected an array, got nested sequences of different lengths"


# ---- what a message says was given ---------------------------------------------------------------------


def _shape(shape):
    return str(list(shape))


def _number(value):
    """Text of an int; Python refuses to print one of more than some thousand digits."""
    return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"


def _given(value):
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"{kind} of shape {_shape(value.shape)} and dtype {value.dtype}"
    if isinstance(value, (str, bytes, bytearray)):
        return f"{kind} {value!r}" if len(value) <= 40 else f"{kind} of length {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool):
        return _number(value)
    if isinstance(value, (bool, float, complex, np.generic)):
        return f"{kind} {value}"
    return kind


# ---- scalars -------------------------------------------------------------------------------------------


def integer(name: str, value, low: int | None = None, high: int | None = None) -> int:
    """Return a Python or NumPy integer within [low, high] as an int; a bool is no integer."""
    expected = "an integer"
    if low is not None and high is not None:
        expected = f"an integer from {low} to {high}"
    elif low is not None:
        expected = f"an integer >= {low}"
    elif high is not None:
        expected = f"an integer <= {high}"
    number = _index(value)
    if number is None:
        raise TypeError(f"{name}: expected {expected}, got {_given(value)}")
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(f"{name}: expected {expected}, got {_number(number)}")
    return number


def _index(value):
    """Return the value as an int, or None when it is no integer."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real(name: str, value, *, positive: bool = False) -> float:
    """Return a finite int, float or NumPy real scalar as a float."""
    expected = "a finite number > 0" if positive else "a finite number"
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, (bool, np.timedelta64)):
        raise TypeError(f"{name}: expected {expected}, got {_given(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (positive and number <= 0.0):
        raise ValueError(f"{name}: expected {expected}, got {_given(value)}")
    return number


def real_within(name: str, value, low: float, high: float = math.inf) -> float:
    """Return a finite int, float or NumPy real scalar within [low, high] as a float."""
    expected = f"a number from {low:g} to {high:g}" if high < math.inf else f"a finite number >= {low:g}"
    try:
        number = real(name, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: expected {expected}, got {_given(value)}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: expected {expected}, got {_given(value)}")
    return number


def epsilon(name: str, value) -> float:
    """Return a LayerNorm epsilon: positive, and neither 0 nor infinite once it is a float32.

    Text is a ValueError here: "1e-5" is what a hand-written config file holds, the right value in quotes.
    """
    if isinstance(value, str):
        raise ValueError(f"{name}: expected a finite number > 0, got {_given(value)}")
    number = real(name, value, positive=True)
    if not _SMALLEST_NORMAL <= number <= _LARGEST:
        raise ValueError(f"{name}: expected a number within the normal range of float32, got {number}")
    return number


def flag(name: str, value) -> bool:
    """Return a bool or NumPy bool as a bool; 0, 1 and text are no flags."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {_given(value)}")
    return bool(value)


def choice(name: str, value, options: tuple) -> str:
    """Return the one of the options that equals the value."""
    expected = ", ".join(repr(option) for option in options)
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected one of {expected}, got {_given(value)}")
    for option in options:
        if option == value:
            return option
    raise ValueError(f"{name}: expected one of {expected}, got {_given(value)}")


def unicode_text(name: str, value) -> str:
    """Return a str that UTF-8 can express: of a subclass the text itself, whatever its `__str__` says."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected text (str), got {_given(value)}")
    value = str.__str__(value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(value[error.start]):04x}"
        raise ValueError(
            f"{name}: expected Unicode text, got a lone surrogate {surrogate} at {error.start}"
        ) from None
    return value


def optional_function(name: str, value) -> None:
    """Raise TypeError unless a value can be called or is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}: expected a function or None, got {type(value).__name__}")


def seed(value) -> int | None:
    """Return a seed: None (a fresh one) or an integer >= 0 of any size."""
    number = _index(value)
    if value is not None and number is None:
        raise TypeError(f"seed: expected None or an integer >= 0, got {_given(value)}")
    if number is not None and number < 0:
        raise ValueError(f"seed: expected None or an integer >= 0, got {_number(number)}")
    return number


# ---- sizes ---------------------------------------------------------------------------------------------


def heads(n_embd: int, n_heads: int) -> int:
    """Return the width of one head, n_embd / n_heads; both are ints already, of any value."""
    if n_embd < 1:
        raise ValueError(
            f"n_embd: expected an integer >= 1 that n_heads ({_number(n_heads)}) divides, "
            f"got {_number(n_embd)}"
        )
    if 12 * n_embd * n_embd > MAX_BYTES:
        raise ValueError(
            f"n_embd: expected a size whose weights [n_embd, 3 * n_embd] take at most {MAX_BYTES} bytes, "
            f"got {_number(n_embd)}"
        )
    if n_heads >= 1 and n_embd % n_heads == 0 and n_embd // n_heads <= MAX_HEAD_DIM:
        return n_embd // n_heads
    nearest = " and ".join(str(count) for count in nearest_head_counts(n_embd, n_heads))
    expected = f"an integer >= 1 that divides n_embd ({n_embd})"
    if n_heads >= 1 and n_embd % n_heads == 0:
        expected = f"n_embd / n_heads ({n_embd} / {n_heads}) to be at most {MAX_HEAD_DIM}"
    raise ValueError(f"n_heads: expected {expected}, got {_number(n_heads)}; nearest valid: {nearest}")


def nearest_head_counts(n_embd: int, n_heads: int) -> tuple[int, ...]:
    """Return the nearest valid head counts below and above n_heads: one or two numbers, ascending."""
    divisors: set[int] = set()
    for small in range(1, math.isqrt(n_embd) + 1):
        if n_embd % small == 0:
            divisors.update((small, n_embd // small))
    valid = [count for count in divisors if n_embd // count <= MAX_HEAD_DIM]
    below = [count for count in valid if count < n_heads]
    above = [count for count in valid if count > n_heads]
    return tuple(([max(below)] if below else []) + ([min(above)] if above else []))


def length_fits(name: str, n_tokens: int, past: int, block_size: int) -> None:
    """Raise unless n_tokens more positions fit behind the past ones that a cache holds."""
    if past + n_tokens > block_size:
        tokens, verb = ("token", "does") if n_tokens == 1 else ("tokens", "do")
        cached = f" after {past} cached" if past else ""
        raise ValueError(f"{name}: {n_tokens} {tokens}{cached} {verb} not fit the block_size of {block_size}")


def cache_sizes(name: str, cache, n_layers: int, n_heads: int, n_embd: int) -> None:
    """Raise unless a KVCache is one of a model of these sizes."""
    if (cache.n_layers, cache.n_heads, cache.n_embd) != (n_layers, n_heads, n_embd):
        raise ValueError(
            f"{name}: expected a cache of this model ({n_layers} layers, {n_heads} heads, width {n_embd}), "
            f"got one of {cache.n_layers} layers, {cache.n_heads} heads, width {cache.n_embd}"
        )


# ---- ids -----------------------------------------------------------------------------------------------


def token_ids(tokens, vocab_size: int, name: str = "tokens") -> tuple[np.ndarray, bool]:
    """Return a private C-contiguous int64 copy [B, T], and whether the input was one sequence [T]."""
    array = token_copy(name, token_array(name, tokens), vocab_size)
    if array.ndim == 1:
        return array.reshape(1, -1), True
    return array, False


def token_copy(name: str, array: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return the private int64 copy of what `token_array` found, of the same shape."""
    return _inside(name, _copy(name, array, _TOKENS_RAGGED), vocab_size, "vocabulary")


def token_array(name: str, tokens) -> np.ndarray:
    """Return what `token_copy` copies: an array [T] or [B, T], not empty, whose shape is nobody else's.

    What its shape rules out needs no copy: a view that repeats one id may be larger than all memory.
    """
    array = _uncopied(name, tokens, _TOKENS_RAGGED)
    if array.ndim != 2 and array.ndim != 1:
        raise ValueError(f"{name}: expected ids of shape [T] or [B, T], got shape {_shape(array.shape)}")
    if array.size == 0:
        raise ValueError(f"{name}: expected at least one token, got shape {_shape(array.shape)}")
    return array


def token_sequences(sequences, vocab_size: int, name: str = "sequences") -> list[np.ndarray]:
    """Return a private int64 copy [T_i] of each of a list of id sequences of any lengths >= 1."""
    return sequence_copies(name, sequence_arrays(name, sequences), vocab_size)


def sequence_copies(name: str, arrays: list[np.ndarray], vocab_size: int) -> list[np.ndarray]:
    """Return the private int64 copies of what `sequence_arrays` found."""
    copies = []
    for i, array in enumerate(arrays):
        item_name = f"{name}[{i}]"
        copies.append(_inside(item_name, _copy(item_name, array, _RAGGED), vocab_size, "vocabulary"))
    return copies


def sequence_arrays(name: str, sequences) -> list[np.ndarray]:
    """Return what `sequence_copies` copies: arrays [T_i], none empty, whose shapes are nobody else's."""
    if _is_list(sequences):
        items = list(sequences)
    else:
        _refuse_text(name, sequences, "a list of token id sequences")
        _refuse_mask(name, sequences)
        array = np.asarray(sequences)
        if array.ndim == 0:
            raise TypeError(f"{name}: expected a list of token id sequences, got {_given(sequences)}")
        if array.ndim > 2:
            raise ValueError(
                f"{name}: expected a list of token id sequences, got shape {_shape(array.shape)}"
            )
        items = list(array)
    if not items:
        raise ValueError(f"{name}: expected at least one sequence, got none")
    arrays = []
    for i, item in enumerate(items):
        item_name = f"{name}[{i}]"
        array = _uncopied(item_name, item, _RAGGED)
        if array.ndim != 1:
            raise ValueError(f"{item_name}: expected ids of shape [T], got shape {_shape(array.shape)}")
        if array.size == 0:
            raise ValueError(f"{item_name}: expected at least one token, got shape [0]")
        arrays.append(array)
    return arrays


def ragged(tokens) -> bool:
    """Whether this is a list of sequences of different lengths; what is in them is checked elsewhere."""
    if not _is_list(tokens) or not all(hasattr(item, "__len__") for item in tokens):
        return False
    return len({len(item) for item in tokens}) > 1


def ids(name: str, x, num_embeddings: int) -> np.ndarray:
    """Return a private C-contiguous int64 copy of row numbers of an embedding, of any shape, also 0-d."""
    array = _integers(name, x, _RAGGED)
    if array.size == 0:
        raise ValueError(f"{name}: expected at least one id, got shape {_shape(array.shape)}")
    return _inside(name, array, num_embeddings, "num_embeddings")


def id_sequence(name: str, value, vocab_size: int) -> list[int]:
    """Return a one-dimensional sequence of ids, which may be empty, as a list of ints."""
    array = _integers(name, value, _RAGGED)
    if array.ndim != 1:
        raise TypeError(f"{name}: expected a one-dimensional sequence of ids, got {_given(value)}")
    return _inside(name, array, vocab_size, "vocabulary").tolist() if array.size else []


def past_ids(name: str, value) -> np.ndarray:
    """Return a private int64 copy of the ids [T] that a cache holds: those of a vocabulary of any size."""
    array = _integers(name, value, _RAGGED)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected ids of shape [T], got shape {_shape(array.shape)}")
    return _inside(name, array, MAX_BYTES, "largest vocabulary") if array.size else array


def _integers(name, value, ragged):
    """Return a private copy of the value: int64, uint64 when its dtype is that, or Python ints as objects."""
    return _copy(name, _uncopied(name, value, ragged), ragged)


def _uncopied(name, value, ragged):
    """Return an array of integers or objects that may not be copied yet, but whose shape is nobody else's.

    Objects of a shape that ids do not have are looked at here: what they are says more than the shape.
    """
    _refuse_mask(name, value)
    array = np.asarray(value).view() if isinstance(value, np.ndarray) else _id_array(name, value, ragged)
    if array.dtype.kind not in "iuO" and array.size:
        raise TypeError(f"{name}: expected integer ids, got dtype {array.dtype}")
    if array.dtype.kind == "O" and array.ndim not in (1, 2):
        _integer_objects(name, array, ragged)
    return array


def _copy(name, array, ragged):
    """Return a private copy of what `_uncopied` gave, of the kinds that `_integers` says."""
    kind = array.dtype.kind
    if kind == "i":
        return np.array(array, dtype=_INT64, order="C")
    if kind == "u":
        return np.array(array, dtype=_UINT64, order="C")
    if array.size == 0:
        return np.empty(array.shape, dtype=_INT64)
    return _integer_objects(name, array, ragged)


def _id_array(name, value, ragged):
    """Return the array that NumPy makes of anything but an array.

    A list which NumPy turns into anything but integers is kept as objects, so that the message can name the
    element; so is one with a bool among its ints, which NumPy would count as 0 or 1, and one that mixes int64
    with uint64, which NumPy would round to float64.
    """
    _refuse_text(name, value, "integer ids")
    if not _is_list(value):
        return np.asarray(value).view()
    array = _list_array(name, value, None, "integer ids", int, ragged)
    if array.dtype.kind not in "iu":
        _refuse_masks(name, value, array.ndim)
    elif not _holds_bool(name, value):
        return array
    return _list_array(name, value, _OBJECT, "integer ids", int, ragged)


def _list_array(name, value, dtype, expected, number, ragged):
    """Return the array that NumPy makes of a list of `expected`, of which each is a `number` of Python's."""
    try:
        return np.asarray(value, dtype=dtype)
    except np.ma.MaskError:
        raise ValueError(_masked(name)) from None
    except ValueError as error:
        for i, item in enumerate(value):
            if not isinstance(item, number) and not any(hasattr(item, known) for known in _ARRAY_LIKE):
                raise TypeError(f"{name}: expected {expected}, got {_given(item)} at [{i}]") from None
        raise ValueError(f"{name}: {ragged}") from error


def _is_list(value):
    """Whether NumPy reads the value item by item, items of any kind: a list, or what acts as one."""
    if isinstance(value, (list, tuple)):
        return True
    return isinstance(value, Sequence) and not isinstance(value, (range, memoryview, str, bytes, bytearray))


def _refuse_text(name, value, expected):
    """Raise for text: NumPy would read a bytearray, or a view of one, as numbers."""
    text = value
    if isinstance(value, memoryview) and value.itemsize == 1:
        text = value.obj
    if isinstance(text, (str, bytes, bytearray)):
        raise TypeError(f"{name}: expected {expected}, got {_given(value)}")


def _holds_bool(name, values):
    """Whether a list has a bool in it; masked elements are refused on the way."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return False
    if bool in kinds or np.bool_ in kinds:
        return True
    for value in values:
        if _is_list(value):
            if _holds_bool(name, value):
                return True
        elif isinstance(value, np.ndarray):
            _refuse_mask(name, value)
            if value.dtype.kind == "b":
                return True
    return False


def _integer_objects(name, array, ragged):
    numbers = np.empty(array.shape, dtype=_OBJECT)
    for position, value in np.ndenumerate(array):
        if _is_list(value) or (isinstance(value, np.ndarray) and value.ndim):
            raise ValueError(f"{name}: {ragged}")
        _refuse_mask(name, value)
        number = _index(value)
        if number is None:
            where = f" at {_shape(position)}" if position else ""
            raise TypeError(f"{name}: expected integer ids, got {_given(value)}{where}")
        numbers[position] = number
    return numbers


def _inside(name, array, limit, what):
    """Return the non-empty private array as int64, each id in [0, limit)."""
    if array.dtype == _OBJECT:
        outside = [i for i, number in enumerate(array.flat) if not 0 <= number < limit]
    else:
        # Seen as unsigned a negative id is huge, and argmax with item takes a third of the time of max.
        unsigned = array.view(_UINT64)
        if unsigned.item(unsigned.argmax()) < limit:
            return array.view(_INT64)
        outside = np.flatnonzero(unsigned >= limit)
    if len(outside):
        position = [int(i) for i in np.unravel_index(outside[0], array.shape)]
        where = f" at {position}" if position else ""
        number = _number(array.item(outside[0]))
        raise ValueError(f"{name}: id {number}{where} is outside the {what} of {limit}")
    return array.astype(_INT64)


# ---- arrays of numbers ---------------------------------------------------------------------------------


def rows(name: str, x, width: int) -> np.ndarray:
    """Return real numbers [..., width] as C-contiguous float32: the array itself when it is that already."""
    array = _array(name, x)
    if array.dtype.kind not in "fiu":
        given = f"dtype {array.dtype}" if array.ndim else _given(x)
        raise TypeError(f"{name}: expected real numbers, got {given}")
    if array.ndim == 0 or array.shape[-1] != width or array.size == 0:
        raise ValueError(
            f"{name}: expected shape [..., {width}] with at least one row, got shape {_shape(array.shape)}"
        )
    return np.ascontiguousarray(_float32(name, array))


def sequences(name: str, x, width: int) -> tuple[np.ndarray, list[int]]:
    """Return real numbers [T, width] or [B, T, width] as C-contiguous float32, and each sequence's length."""
    array = rows(name, x, width)
    if not 2 <= array.ndim <= 3:
        raise ValueError(
            f"{name}: expected shape [T, {width}] or [B, T, {width}], got shape {_shape(array.shape)}"
        )
    return array, [array.shape[-2]] * (array.shape[0] if array.ndim == 3 else 1)


def numbers(name: str, x) -> np.ndarray:
    """Return real numbers of any shape, at least one, as C-contiguous float32."""
    array = _array(name, x)
    if array.ndim == 0:
        return rows(name, array.reshape(1), 1).reshape(())
    return rows(name, array, array.shape[-1])


def matrix_size(names: str, n_rows: int, n_columns: int) -> None:
    """Refuse a matrix whose bytes overflow; whether it fits the memory is found out when it is allocated."""
    if n_rows * (n_columns + 32) * 4 > MAX_BYTES // 2:
        raise ValueError(
            f"{names}: expected a matrix of at most {MAX_BYTES // 2} bytes, got [{n_rows}, {n_columns}]"
        )


def weight(name: str, value, shape: tuple[int, ...]) -> np.ndarray:
    """Return floats of exactly this shape as float32 of any strides; NaN and Inf are let through."""
    array = _array(name, value)
    if array.dtype.kind != "f":
        raise TypeError(f"{name}: expected floating-point numbers, got dtype {array.dtype}")
    if array.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {_shape(shape)}, got shape {_shape(array.shape)}")
    return _float32(name, array)


def output(name: str, value, shape: tuple[int, ...], fewer: bool = False) -> None:
    """Raise unless an array can take results: C-contiguous float32 of this shape, or of fewer rows."""
    expected = f"a writable C-contiguous float32 array {_shape(shape)}"
    if fewer:
        expected = f"a writable C-contiguous float32 array [m, {shape[1]}] of at most {shape[0]} rows"
    _refuse_mask(name, value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected {expected}, got {_given(value)}")
    shape_fits = value.shape == shape
    if fewer and value.ndim == len(shape):
        shape_fits = value.shape[1:] == shape[1:] and len(value) <= shape[0]
    if value.dtype != _FLOAT32 or not shape_fits:
        raise ValueError(f"{name}: expected {expected}, got {_given(value)}")
    if not (value.flags.c_contiguous and value.flags.writeable and value.flags.aligned):
        raise ValueError(f"{name}: expected {expected}, got one that is strided or read-only")


def apart(name: str, value, other_name: str, other) -> None:
    """Raise if what is written to an array would be seen in ids: in an array, a view, or a list of them."""
    if isinstance(other, np.ndarray) and other.dtype == _OBJECT:
        other = other.tolist()
    if not isinstance(other, np.ndarray) and _is_list(other):
        if set(map(type, other)) != {int}:
            for item in other:
                apart(name, value, other_name, item)
    elif not isinstance(other, (int, np.generic)) and np.may_share_memory(value, np.asarray(other)):
        raise ValueError(
            f"{name}: expected an array of its own, got one that shares memory with {other_name}"
        )


def _refuse_mask(name, value):
    """Masked elements are nothing that can be computed with: their data would be used in silence."""
    if (
        isinstance(value, np.ndarray)
        and type(value) is not np.ndarray
        and np.any(getattr(value, "mask", False))
    ):
        raise ValueError(_masked(name))


def _refuse_masks(name, values, depth):
    """The same of what a list holds, as many lists deep as it has dimensions."""
    for value in values:
        if isinstance(value, np.ndarray):
            _refuse_mask(name, value)
        elif depth > 1 and _is_list(value):
            _refuse_masks(name, value, depth - 1)


def _masked(name):
    return f"{name}: expected an array without masked elements, got a masked array"


def _array(name, value):
    _refuse_mask(name, value)
    if not _is_list(value):
        return np.asarray(value)
    array = _list_array(name, value, None, "real numbers", (int, float), _RAGGED)
    # Looking at each number would take as long as NumPy takes to read it; one that is masked has become NaN.
    has_nan = array.dtype.kind == "f" and np.isnan(array).any()
    if has_nan or array.ndim > 1:
        _refuse_masks(name, value, array.ndim if has_nan else array.ndim - 1)
    return array


def _float32(name, array):
    """Return an aligned native float32 array; refuse a finite number that would become infinite."""
    if array.dtype == _FLOAT32 and array.flags.aligned:
        return array
    with np.errstate(all="ignore"):
        result = array.astype(_FLOAT32, order="C")
    if array.dtype.kind == "f" and array.dtype.itemsize > _FLOAT32.itemsize:
        overflowed = np.isinf(result) & np.isfinite(array)
        if overflowed.any():
            position = np.unravel_index(overflowed.argmax(), array.shape)
            where = _shape(int(i) for i in position)
            raise ValueError(f"{name}: expected numbers within float32, got {array[position]} at {where}")
    return result
