# SPDX-License-Identifier: Apache-2.0
"""A pickle machine that can build tensors and plain containers and nothing else.

A pickle is a program. Python's own machine imports what the program names and calls it; this one knows the
few opcodes that data needs, and nothing in it can reach a module: a global stays a name, and calling one
looks it up in CALLS below, where each entry builds one of our own descriptions. So no code of a file ever
runs, and nothing is allocated that the file does not spell out.

The opcodes are those of Python's pickletools; PyTorch writes protocol 2 unless it is told otherwise.
"""

import struct
from dataclasses import dataclass

MOST_STEPS = 2_000_000  # opcodes: a gpt2-xl with its optimizer takes a tenth of a million
MOST_AXES = 8  # of a tensor
MOST_GLOBAL = 256  # characters of a global's name


@dataclass(frozen=True)
class Global:
    """A class or function, by name only."""

    name: str


@dataclass(frozen=True)
class Storage:
    """The memory of tensors: where in the archive it is, and of what numbers."""

    type: str
    key: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A part of a storage; offset and strides count numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Refused(ValueError):
    """The pickle wants something that data does not need."""


class _Mark:
    pass


_MARK = _Mark()


def load(read):
    """Run a pickle and return the plain value that it builds.

    Parameters
    ----------
    read : function of int
        Return just that many of the next bytes, or raise ValueError.

    Raises
    ------
    ValueError
        If the pickle is damaged, or (Refused) asks for anything but data.

    Examples
    --------
    >>> import io, pickle
    >>> from gpt2cy.weights.readers.unpickle import load
    >>> load(io.BytesIO(pickle.dumps({"a": [1, 2.5, ("x", None)]}, 2)).read)
    {'a': [1, 2.5, ('x', None)]}
    """
    machine = _Machine(read)
    try:
        return machine.run()
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError, KeyError) as error:
        raise ValueError(f"damaged pickle: {type(error).__name__}") from None


class _Machine:
    def __init__(self, read):
        self.read = read
        self.stack = []
        self.memo = {}

    def run(self):
        for _ in range(MOST_STEPS):
            code = self.read(1)
            if code == b".":
                value = self.pop()
                if self.stack:
                    raise ValueError("damaged pickle: it ends with values left over")
                return value
            step = STEPS.get(code)
            if step is None:
                raise Refused(f"the pickle has the opcode {code!r}, which plain data does not need")
            step(self)
        raise ValueError(f"the pickle has more than {MOST_STEPS:,} steps")

    # ---- the stack ------------------------------------------------------------------------------

    def pop(self):
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("damaged pickle: a mark in place of a value")
        return value

    def since_mark(self):
        """Take what lies above the last mark, and the mark."""
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is _MARK:
                values = self.stack[i + 1 :]
                del self.stack[i:]
                return values
        raise ValueError("damaged pickle: no mark")

    def top(self, kind):
        value = self.stack[-1]
        if type(value) is not kind:
            raise ValueError(f"damaged pickle: expected a {kind.__name__}, found {type(value).__name__}")
        return value

    # ---- reading --------------------------------------------------------------------------------

    def number(self, form):
        return struct.unpack(form, self.read(struct.calcsize(form)))[0]

    def text(self, count):
        return self.read(count).decode("utf-8", "surrogatepass")

    def line(self):
        characters = bytearray()
        while (character := self.read(1)) != b"\n":
            characters += character
            if len(characters) > MOST_GLOBAL:
                raise ValueError("damaged pickle: the name of a global is too long")
        return characters.decode("ascii")

    def push_global(self, module, name):
        if not (type(module) is str and type(name) is str):
            raise ValueError("damaged pickle: the name of a global is no text")
        full = f"{module}.{name}"
        if full not in CALLS and not (module == "torch" and name.endswith("Storage")):
            raise Refused(f"the pickle names {full[:MOST_GLOBAL]!r}, and no data needs that")
        self.stack.append(Global(full))

    # ---- containers -----------------------------------------------------------------------------

    def put_items(self, values):
        target = self.top(dict)
        if len(values) % 2:
            raise ValueError("damaged pickle: a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int, float, bool, type(None)):
                raise Refused(f"the pickle has a {type(key).__name__} as the key of a dict")
            target[key] = value

    def reduce(self):
        arguments, function = self.pop(), self.pop()
        if type(function) is not Global or type(arguments) is not tuple or function.name not in CALLS:
            raise Refused("the pickle calls what is not known to build a tensor or a container")
        self.stack.append(CALLS[function.name](*_as_many(function.name, arguments)))

    def build(self):
        """State of an OrderedDict is what torch remembers of modules; of anything else it is refused."""
        self.pop()
        self.top(dict)

    def storage(self):
        found = self.pop()
        match found:
            case ("storage", Global(name=kind), str(key), str(), int(count), *view) if (
                count >= 0 and view in ([], [None])
            ):
                self.stack.append(Storage(kind, key, count))
            case _:
                raise Refused("the pickle refers to something outside it that is no storage of a tensor")

    def memoize(self, index):
        self.memo[index] = self.stack[-1]


# ---- what may be called: each takes the tuple of arguments -----------------------------------------------


def _as_many(name, arguments):
    least, most = ARGUMENTS[name]
    if not least <= len(arguments) <= most:
        raise ValueError(f"damaged pickle: {name} with {len(arguments)} arguments")
    return arguments


def _ordered_dict(pairs=()):
    if pairs:
        raise ValueError("damaged pickle: an OrderedDict made of pairs")
    return {}


def _tensor(storage, offset, shape, strides, *_):
    numbers = (offset, *_ints(shape), *_ints(strides))
    fine = len(shape) == len(strides) <= MOST_AXES and all(
        type(n) is int and 0 <= n < 1 << 63 for n in numbers
    )
    if type(storage) is not Storage or not fine:
        raise ValueError("damaged pickle: a tensor of no storage, or of impossible shape")
    return Tensor(storage, offset, shape, strides)


def _ints(values):
    if type(values) is not tuple:
        raise ValueError("damaged pickle: a shape that is no tuple")
    return values


def _parameter(data, *_):
    if type(data) is not Tensor:
        raise ValueError("damaged pickle: a parameter of no tensor")
    return data


def _size(values=()):
    return _ints(values)


CALLS = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
}
ARGUMENTS = {
    "collections.OrderedDict": (0, 1),
    "torch._utils._rebuild_tensor": (4, 4),
    "torch._utils._rebuild_tensor_v2": (6, 7),
    "torch._utils._rebuild_parameter": (3, 3),
    "torch.Size": (0, 1),
}


# ---- opcodes ---------------------------------------------------------------------------------------------


def _push(read):
    """An opcode that pushes what it reads."""
    return lambda machine: machine.stack.append(read(machine))


def _tuple(count):
    def step(machine):
        values = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(values)))

    return step


def _appends(machine):
    values = machine.since_mark()
    machine.top(list).extend(values)


def _append(machine):
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine):
    value, key = machine.pop(), machine.pop()
    machine.put_items([key, value])


def _dict_since_mark(machine):
    values = machine.since_mark()
    machine.stack.append({})
    machine.put_items(values)


def _stack_global(machine):
    name, module = machine.pop(), machine.pop()
    machine.push_global(module, name)


def _long(machine):
    return int.from_bytes(machine.read(machine.number("<B")), "little", signed=True)


STEPS = {
    b"\x80": lambda machine: machine.read(1),  # PROTO
    b"\x95": lambda machine: machine.read(8),  # FRAME
    b"(": lambda machine: machine.stack.append(_MARK),
    b"0": lambda machine: machine.pop(),
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"J": _push(lambda machine: machine.number("<i")),
    b"K": _push(lambda machine: machine.number("<B")),
    b"M": _push(lambda machine: machine.number("<H")),
    b"\x8a": _push(_long),
    b"G": _push(lambda machine: machine.number(">d")),
    b"X": _push(lambda machine: machine.text(machine.number("<I"))),
    b"\x8c": _push(lambda machine: machine.text(machine.number("<B"))),
    b"\x8d": _push(lambda machine: machine.text(machine.number("<Q"))),
    b"B": _push(lambda machine: machine.read(machine.number("<I"))),
    b"C": _push(lambda machine: machine.read(machine.number("<B"))),
    b"]": _push(lambda machine: []),
    b"}": _push(lambda machine: {}),
    b")": _push(lambda machine: ()),
    b"l": _push(lambda machine: machine.since_mark()),
    b"t": _push(lambda machine: tuple(machine.since_mark())),
    b"d": _dict_since_mark,
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"a": _append,
    b"e": _appends,
    b"s": _set_item,
    b"u": lambda machine: machine.put_items(machine.since_mark()),
    b"c": lambda machine: machine.push_global(machine.line(), machine.line()),
    b"\x93": _stack_global,
    b"R": lambda machine: machine.reduce(),
    b"b": lambda machine: machine.build(),
    b"Q": lambda machine: machine.storage(),
    b"q": lambda machine: machine.memoize(machine.number("<B")),
    b"r": lambda machine: machine.memoize(machine.number("<I")),
    b"\x94": lambda machine: machine.memoize(len(machine.memo)),
    b"h": _push(lambda machine: machine.memo[machine.number("<B")]),
    b"j": _push(lambda machine: machine.memo[machine.number("<I")]),
}
