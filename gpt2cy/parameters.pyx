# SPDX-License-Identifier: Apache-2.0
"""Parameters: a model's weights by Hugging Face's GPT-2 names and layouts, to and from the layers that hold them.

    h.3.attn.c_attn.weight   [C, 3 C]   as the layer has it
    lm_head.weight           [V, C]     in files and here; [C, V] as a layer
"""
import numpy as np

from gpt2cy.layers.embedding cimport Embedding
from gpt2cy.layers.layernorm cimport LayerNorm
from gpt2cy.layers.linear cimport Linear, begin_reading

from gpt2cy import _checks

NORMS = {"weight": "gamma", "bias": "beta"}


cdef class Parameters:
    """Where each parameter lives.

    Parameters
    ----------
    shapes : dict
        Of the parameters, by name, in model order (`GPTConfig.parameter_shapes`).
    layers : dict
        The layers by name: "wte", "h.0.ln_1", ...
    tied : bool
        Whether the head's weight is the token embedding.
    arena : Arena
        That holds them all.
    """

    def __cinit__(self, dict shapes not None, dict layers not None, bint tied, Arena arena not None):
        self.shapes = shapes
        self.tied = tied
        self.arena = arena
        self.places = {}
        for name in shapes:
            layer, _, kind = name.rpartition(".")
            self.places[name] = layers[layer], NORMS[kind] if isinstance(layers[layer], LayerNorm) else kind

    def __iter__(self):
        return iter(self.places)

    def __getitem__(self, str name not None):
        return self.read(name)

    cdef read(self, str name):
        """A fresh read-only array."""
        layer, attribute = self.places[name]
        if name != "lm_head.weight":
            return getattr(layer, attribute)
        begin_reading(self.arena)
        try:
            array = (<Linear?>layer).matrix.to_array(transposed=True)
        finally:
            self.arena.leave_read()
        array.flags.writeable = False
        return array

    def put(self, str name not None, const float[:, :] rows not None, Py_ssize_t first, bint transposed):
        """Set a part of a parameter, of float32 rows from a file; the caller has the arena to write.

        Parameters
        ----------
        name : str
        rows : memoryview of float32, [r, last axis]
            A vector is one row. `transposed`: rows of the parameter's transpose, hence its columns.
        first : int
            Index of the first of them.
        """
        cdef Linear linear
        layer, attribute = self.places[name]
        if isinstance(layer, Embedding):
            if transposed:
                raise ValueError(f"{name}: a table is set by its rows")
            (<Embedding>layer).fill(rows, first)
        elif attribute == "weight":
            linear = <Linear?>layer
            if transposed == (name == "lm_head.weight"):   # of which the layer itself has the transpose
                linear.matrix.fill(rows, first)
            else:
                linear.matrix.fill_transposed(rows, first)
        elif isinstance(layer, LayerNorm):
            (<LayerNorm>layer).put(attribute, rows[0])
        else:
            (<Linear?>layer).put(attribute, rows[0])

    cdef dict checked(self, mapping):
        """The mapping's arrays, float32 and of the right shapes; one ValueError with all that is wrong."""
        try:
            given = dict(mapping)
        except (TypeError, ValueError):
            raise TypeError(f"mapping: expected names and arrays, got {type(mapping).__name__}") from None
        for name in given:
            if not isinstance(given[name], np.ndarray):   # once: it may answer differently the next time
                given[name] = np.asarray(given[name])
        if self.tied and "lm_head.weight" in given and "wte.weight" in given:
            if not np.array_equal(given["wte.weight"], given.pop("lm_head.weight"), equal_nan=True):
                raise ValueError("mapping: lm_head.weight differs from wte.weight, but the config ties them")
        problems = [f"missing: {name} {list(shape)}" for name, shape in self.shapes.items() if name not in given]
        problems += [f"unexpected: {name}" for name in given if name not in self.shapes]
        for name, shape in self.shapes.items():
            if name in given:
                try:
                    given[name] = _checks.weight(name, given[name], shape)
                except (TypeError, ValueError) as error:
                    problems.append(str(error))
        if problems:
            hint = ""
            if any(str(name).startswith("transformer.") for name in given):
                hint = "\n(names have no 'transformer.' prefix here: strip it)"
            raise ValueError("mapping does not fit the model:\n  " + "\n  ".join(problems) + hint)
        return given

    cdef int load(self, mapping) except -1:
        """Set them all: no call sees half of them, and no signal comes between."""
        values = self.checked(mapping)
        self.arena.enter_write()
        try:
            for name, (layer, attribute) in self.places.items():
                value = values[name]
                if isinstance(layer, Embedding):
                    (<Embedding>layer).fill(value, 0)
                elif isinstance(layer, LayerNorm):
                    (<LayerNorm>layer).put(attribute, value)
                else:
                    (<Linear?>layer).put(attribute, value.T if name == "lm_head.weight" else value)
        finally:
            self.arena.leave_write()
        return 0
