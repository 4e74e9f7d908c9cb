# SPDX-License-Identifier: Apache-2.0
"""GPT: what a user of the model calls, and what it says of itself.

How a call goes is in its base (transformer.pyx); text, files and looking inside are packages of their own, which are
imported when a method that needs them is called.
"""
import numpy as np

cimport cython

from gpt2cy.cache cimport KVCache
from gpt2cy.layers.tap cimport Observer

from gpt2cy import _checks
from gpt2cy.kernels import host
from gpt2cy.layers.pickling import plain, reduced
from gpt2cy.layers.tap import EDITS as _EDITS

cdef object edits_in_force = _EDITS.get


cdef class GPT(Transformer):
    """A GPT-2 class language model.

    Parameters
    ----------
    config : GPTConfig
        Sizes and options.
    seed : int, optional
        Seed of the initial weights; equal seeds give equal models. Without one they differ from run to run.
    init_std : float
        Standard deviation of the initial embeddings and linear weights; biases start at 0, gammas at 1.

    Attributes
    ----------
    config : GPTConfig
    wte, wpe : Embedding
        Of tokens and of positions.
    blocks : tuple of Block
    ln_f : LayerNorm
    lm_head : Linear
        [C, V]. With tied weights it shares `wte`'s memory: assigning to either changes both.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights cannot be allocated.

    Notes
    -----
    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). The logits of a token depend only
    on the weights and the tokens before it, to the bit: not on batch, cache, threads or, with fused multiply-add,
    instruction set (docs/numerics.md).

    When nobody holds a large result any longer (32 MiB and more, but no more than the weights), the model keeps its
    memory for the next one, since the system takes long to find and clear so many pages; `release_memory` gives it
    back. Such an array does not own its memory, in NumPy's words: it cannot be resized in place.

    Examples
    --------
    >>> import gpt2cy
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> model([[1, 2, 3]]).shape
    (1, 3, 512)
    """

    cdef Observer observed(self, bint check_finite=False):
        """Who sees the pass that begins: nobody, unless this thread edits the model or something is to be checked."""
        if not check_finite and not edits_in_force():
            return None
        from gpt2cy.inspection import watch
        return watch.for_pass(self, check_finite)

    cdef Observer checked(self, check_finite):
        """Who checks a pass, or None."""
        if check_finite is False or not _checks.flag("check_finite", check_finite):
            return None
        return self.observed(True)

    # ---- forward ----------------------------------------------------------------------------

    def forward(self, tokens, cache=None, *, check_finite=False, out=None):
        """Logits of every position.

        Parameters
        ----------
        tokens : array_like of int, [T] or [B, T]
            Ids from 0 to vocab_size - 1; every one is a real token: there is no padding. For different
            lengths use `forward_many`.
        cache : KVCache, optional
            With B slots: tokens are read as the continuation of what it holds, and appended to it.
        check_finite : bool
            Whether to look at every activation on the way (`trace_names`), and raise where the first one is not
            finite.
        out : ndarray of float32, tokens.shape + (vocab_size,), optional
            Takes the result, as in NumPy: C-contiguous, and not the memory of `tokens`. Used again and again it needs
            no new pages. After an error it may hold anything.

        Returns
        -------
        ndarray of float32, tokens.shape + (vocab_size,), or `out`

        Raises
        ------
        TypeError, ValueError
            If tokens are of the wrong kind, empty, out of range or too long, or do not fit the cache; or if `out` is
            not such an array.
        RuntimeError
            If the cache is in use by another call, or weights are being assigned.
        FloatingPointError
            With `check_finite`, naming the first activation and position that is not finite; nothing has been
            appended to the cache then.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.forward([3, 1, 4]).shape
        (3, 512)
        """
        return self.batch_logits(tokens, cache, False, self.checked(check_finite), out)

    def __call__(self, tokens, cache=None, *, check_finite=False, out=None):
        """The same as `forward`."""
        return self.batch_logits(tokens, cache, False, self.checked(check_finite), out)

    def next_logits(self, tokens, cache=None, *, check_finite=False, out=None):
        """Logits of the last position only: what comes next.

        Parameters and errors are those of `forward`; `out` has the result's shape.

        Returns
        -------
        ndarray of float32, [B, vocab_size], or [vocab_size] for tokens [T]

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.next_logits([[3, 1, 4]]).shape
        (1, 512)
        """
        return self.batch_logits(tokens, cache, True, self.checked(check_finite), out)

    def forward_many(self, sequences, caches=None, *, check_finite=False):
        """Logits of every position of sequences of different lengths, in one pass without padding.

        Parameters
        ----------
        sequences : list of array_like of int, each [T_i]
            Each of any length from 1 to block_size.
        caches : list of KVCache, optional
            One single-slot cache a sequence, all different.
        check_finite : bool
            As in `forward`.

        Returns
        -------
        list of ndarray of float32, each [T_i, vocab_size]
            Equal to the bit to calling `forward` on each alone.

        Raises
        ------
        TypeError, ValueError, RuntimeError, FloatingPointError
            As `forward`; ValueError if a cache is given twice.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> [logits.shape for logits in model.forward_many([[1, 2, 3], [4]])]
        [(3, 512), (1, 512)]
        """
        return self.ragged_logits("sequences", sequences, caches, self.checked(check_finite))

    def next_logits_many(self, sequences, caches=None, *, out=None):
        """Logits of the last position of sequences of different lengths, in one pass without padding.

        Parameters
        ----------
        sequences, caches
            As `forward_many` takes them.
        out : ndarray of float32, [m, vocab_size], optional
            Where to put the logits: C-contiguous, no memory of the sequences. With m < n only the first m sequences
            have logits computed, and the others are just read into their caches.

        Returns
        -------
        ndarray of float32, [n, vocab_size], or `out`
            Equal to the bit to calling `next_logits` on each alone.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `forward_many`.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.next_logits_many([[1, 2, 3], [4]]).shape
        (2, 512)
        """
        return self.next_ragged_logits(sequences, caches, out)

    def new_cache(self, batch_size=1, capacity=None):
        """An empty cache for this model.

        Parameters
        ----------
        batch_size : int
            Number of slots, up to 2**20: rows of the batches it will be used with.
        capacity : int, optional
            Most positions of a slot; `block_size` by default.

        Returns
        -------
        KVCache
            It takes memory as it is filled, not before.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.new_cache(batch_size=2, capacity=100).lengths
        [0, 0]
        """
        return KVCache(self.config, batch_size, capacity)

    # ---- text: doors to gpt2cy.generation, which is imported when one is opened ---------------------

    def prefill(self, prompt):
        """Read a prompt into a new cache.

        The cache may be copied and continued many times, by `generate` too, which does not change it.

        Parameters
        ----------
        prompt : array_like of int, [T]
            From 1 to block_size ids.

        Returns
        -------
        KVCache
            Of one slot.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `forward`.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> cache = model.prefill([5, 6, 7])
        >>> cache.lengths
        [3]
        >>> after = model.generate([[8], [9, 10]], cache=cache, max_new_tokens=2, temperature=0)
        >>> whole = model.generate([[5, 6, 7, 8], [5, 6, 7, 9, 10]], max_new_tokens=2, temperature=0)
        >>> [list(new) for new in after] == [list(new) for new in whole]
        True
        """
        ids = _checks.token_array("prompt", prompt)
        if ids.ndim != 1:
            raise ValueError(f"prompt: expected ids of shape [T], got shape {list(ids.shape)}")
        _checks.length_fits("prompt", ids.size, 0, self.wpe.num_embeddings)
        ids, _ = _checks.token_ids(ids, self.wte.num_embeddings, "prompt")
        cache = self.new_cache()
        self.next_logits_many(ids, [cache], out=np.empty((0, self.wte.num_embeddings), np.float32))
        return cache

    def generate(self, prompts, sampling=None, *, cache=None, details=False, progress=None, **settings):
        """Continue prompts, all in one ragged batch.

        What a row becomes depends on its prompt, its settings, the seed, its place among the prompts, and which of
        the prompt's samples it is: not on the other rows, the number of threads or the instruction set. A beginning
        that several prompts share is computed once.

        Parameters
        ----------
        prompts : list of array_like of int, each [T_i]
            From 1 to block_size ids each.
        sampling : Sampling, or a list of one a prompt, optional
            The settings; `Sampling` describes them.
        cache : KVCache, optional
            Of one slot: every prompt continues what it holds, and may then be empty. It is not changed.
        details : bool
            Whether to return `Generated` objects.
        progress : function, optional
            Called with the number of new ids after each step.
        **settings
            Any setting of `Sampling`, instead of that one's: ``max_new_tokens=50``, ``temperature=0`` for the likeliest
            id each time, ``top_p=0.9``, ``n=3`` samples of each prompt, ``stop_ids=[7]``, ``seed=1``, ... One value for
            all prompts, or a list of one a prompt; of what itself is a list (stop_ids), a list of lists.

        Returns
        -------
        list of ndarray of int64, or of Generated
            The new ids of each prompt, an emitted stop id included; the samples of a prompt follow each other.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range, or a list has not one element a prompt.
        FloatingPointError
            If logits are not finite.
        RuntimeError
            If the cache is in use by another call, or weights are being assigned.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> [len(new) for new in model.generate([[1, 2, 3], [4]], max_new_tokens=[5, 2], seed=0)]
        [5, 2]
        """
        from gpt2cy.generation import generate
        return generate.generate(self, prompts, sampling, cache, details, progress, settings)

    def token_logprobs(self, tokens, *, stride=None, vocab_limit=None):
        """Natural log of each token's probability, knowing the tokens before it.

        Parameters
        ----------
        tokens : array_like of int, [T]
            One sequence of any length. One longer than block_size is seen through windows of at most block_size
            tokens, the scored ones included, each overlapping the one before.
        stride : int, optional
            How far the windows are apart, from 1 to block_size - 1: a token sees at least block_size - stride
            tokens before it, or all there are. None means block_size - 1: as few windows as can be.
        vocab_limit : int, optional
            Only ids below it exist: the others, rows that pad a vocabulary, have no share of the probability.

        Returns
        -------
        ndarray of float32, [T - 1]
            Of each token after the first, once; the first has nothing before it.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range.
        FloatingPointError
            If logits are not finite; the message says before which token.
        MemoryError, RuntimeError
            As `forward`.

        Notes
        -----
        The bits depend on the weights and on the tokens of a window up to this one, and on nothing else.
        docs/scoring.md says what the numbers mean.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.token_logprobs([3, 1, 4, 1, 5]).shape
        (4,)
        """
        from gpt2cy.generation import scoring
        return scoring.token_logprobs(self, self.held_ids(tokens), stride, vocab_limit)

    def perplexity(self, tokens, *, stride=None, vocab_limit=None):
        """exp of the mean of -`token_logprobs`: of how many equally likely tokens each is one, on average.

        Parameters and errors are those of `token_logprobs`; also ValueError for a single token.

        Returns
        -------
        float
            The mean is of tokens, not of windows, and taken in float64.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> 400 < model.perplexity([3, 1, 4, 1, 5]) < 600          # untrained: nearly its 512 tokens
        True
        """
        from gpt2cy.generation import scoring
        return scoring.perplexity(self, self.held_ids(tokens), stride, vocab_limit)

    cdef held_ids(self, tokens):
        """The argument `tokens` as an array that is not copied yet; MemoryError where not even the copies fit."""
        array = _checks.token_array("tokens", tokens)
        host.require_memory("tokens", {"ids": 16 * array.size}, "the number of tokens")
        return array

    def score_many(self, sequences, starts=None, *, top=0, vocab_limit=None):
        """Log probabilities, entropies, ranks and alternatives of tokens of several sequences.

        They run in ragged batches, without padding; what several begin with, up to where they are scored, runs once.

        Parameters
        ----------
        sequences : list of array_like of int, each [T_i]
            Of at most block_size + 1 tokens: the last one is not run, since nothing after it is scored.
        starts : list of int, optional
            Of each sequence, the first token to be scored, from 1 to T_i; T_i scores none. None: 1 for each.
        top : int
            How many of the likeliest tokens to name in each place.
        vocab_limit : int, optional
            As `token_logprobs`.

        Returns
        -------
        list of TokenScores
            Arrays, each [T_i - start_i, ...]: tokens, logprobs, entropies, ranks, likeliest, top_ids, top_logprobs;
            and their logprob (the sum) and is_greedy. The same bits as each sequence alone.

        Raises
        ------
        TypeError, ValueError, FloatingPointError, MemoryError, RuntimeError
            As `token_logprobs`; ValueError too if a sequence is too long.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> yes, no = model.score_many([[5, 9, 2, 7], [5, 9, 3]], starts=[2, 2], top=3)
        >>> yes.tokens.tolist(), no.tokens.tolist(), yes.top_ids.shape, yes.logprob < 0
        ([2, 7], [3], (2, 3), True)
        """
        from gpt2cy.generation import scoring
        return scoring.score_many(self, sequences, starts, top=top, vocab_limit=vocab_limit)

    # ---- looking inside: doors to gpt2cy.inspection, which is imported when one is opened ------------

    def trace_names(self):
        """The names of all activations, in the order of computation.

        `docs/inside.md` has the table of what each is.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.trace_names()[:6]
        ['embed', 'resid.0', 'h.0.ln_1', 'h.0.attn.q', 'h.0.attn.k', 'h.0.attn.v']
        """
        from gpt2cy.inspection import names
        return list(names.of(self))

    def trace(self, tokens, names="*", *, cache=None):
        """Run the model and keep activations by name.

        Parameters
        ----------
        tokens : array_like of int, [T] or [B, T], or a list of such [T_i] of different lengths
        names : str or list of str
            Names, or patterns in which ``*``, ``?`` and ``[...]`` stand for any text, any character and any of
            some: "h.*.attn.weights", "h.3.mlp.hidden", "resid.*". Only what matches takes memory, and without a
            cache the pass ends where all of it has been seen.
        cache : KVCache, or a list of them for sequences of different lengths, optional
            As in `forward` and `forward_many`.

        Returns
        -------
        dict of str to ndarray of float32
            Copies, in the order of computation, of the shapes in the notes; for tokens [B, T] with an axis B in
            front; for sequences of different lengths each is a list of arrays. Within `edit` they are what the
            model went on with.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `forward`; ValueError if a pattern matches no name, with the names nearest to it.
        MemoryError
            If what is asked for does not fit the memory that is left.

        Notes
        -----
        T counts the new positions and S all up to the last, those in the cache included; H heads of width D, C the
        model's width, F that of the MLP, V the vocabulary.

        ============================================  =========  ====================================================
        embed                                         [T, C]     token plus position
        h.i.ln_1                                      [T, C]     first norm of block i
        h.i.attn.q, h.i.attn.k, h.i.attn.v            [H, T, D]  queries, keys, values of the new positions
        h.i.attn.scores                               [H, T, S]  scale q k^T, before softmax; -inf where masked
        h.i.attn.weights                              [H, T, S]  how much each query takes of each position's value
        h.i.attn.heads                                [H, T, D]  what each head took: weights @ v
        h.i.attn.per_head                             [H, T, C]  what each head adds to attn.out: all but the bias
        h.i.attn.out                                  [T, C]     what attention adds to the residual
        h.i.resid_mid                                 [T, C]     residual after attention
        h.i.ln_2                                      [T, C]     second norm
        h.i.mlp.pre, h.i.mlp.hidden                   [T, F]     before and after the activation
        h.i.mlp.out                                   [T, C]     what the MLP adds to the residual
        h.i.resid                                     [T, C]     residual after the block
        ln_f                                          [T, C]     final norm
        logits                                        [T, V]     equal to those of `forward` to the bit
        resid.0, resid.1, ...                         [T, C]     the same arrays as embed, h.0.resid, ...
        ============================================  =========  ====================================================

        The attention kernel keeps neither scores nor weights; asked for, they are made apart from the same q and k.
        Scores are its numbers to the bit. Weights are one softmax of a whole row, where the kernel goes block by
        block and divides at the end: `weights @ v` is `heads` but for rounding.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> seen = model.trace([3, 1, 4], ["h.*.attn.weights", "logits"])
        >>> [(name, array.shape) for name, array in seen.items()][2:]
        [('h.2.attn.weights', (4, 3, 3)), ('logits', (3, 512))]
        """
        from gpt2cy.inspection import watch
        return watch.trace(self, tokens, names, cache)

    def edit(self, edits):
        """Change activations on their way, in every call on this model within a ``with`` block.

        Parameters
        ----------
        edits : mapping of str to an edit, a function, or a list of them
            By name or pattern, as in `trace`; `gpt2cy.inspection` has the edits: zero, scale, add, replace, mean,
            apply. A function takes an array of the name's shape, for one sequence, and returns one.

        Returns
        -------
        context manager
            It gives the model. Edits hold in the thread (or asyncio task) that entered it, until it is left,
            however that happens. An inner block's edits come after an outer's.

        Raises
        ------
        TypeError, ValueError
            If a name matches nothing, or an edit does not fit what it is for. What an edit raises in a call, or
            an array of the wrong shape or kind that it returns, is raised by that call, which leaves the cache as
            it was.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import zero
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> with model.edit({"h.1.attn.heads": zero(head=2), "h.*.mlp.hidden": lambda hidden: 2 * hidden}):
        ...     edited = model([3, 1, 4])
        >>> bool((edited == model([3, 1, 4])).any())
        False
        """
        from gpt2cy.inspection import editing
        return editing.Editing(self, edits)

    def profile(self, tokens, cache=None, *, last_only=False, seconds=1.0):
        """Where the time of a pass goes: operation by operation and layer by layer.

        The pass is the one that `forward` runs, with a clock read at each step; nothing is computed in another way.
        It is repeated, and the mean of the middle half is kept. Edits in force are not applied.

        Parameters
        ----------
        tokens : array_like of int, [T] or [B, T]
        cache : KVCache, optional
            What comes before, as in `forward`; it is left as it was.
        last_only : bool
            Whether to run `next_logits` instead of `forward`.
        seconds : float
            How long to repeat, about; three passes at least. As long again measures the machine.

        Returns
        -------
        gpt2cy.inspection.Profile
            Printed it is a table; `plot()` draws it (the extra `plot`).

        Raises
        ------
        TypeError, ValueError, MemoryError, RuntimeError
            As `forward`; if seconds is not positive.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> print(model.profile([[1, 2, 3]], seconds=0.01))
        operation     layers  ...
        embed ...
        >>> token = [[4]]
        >>> cache = model.new_cache()
        >>> logits = model.next_logits([[1, 2, 3]], cache)
        >>> model.profile(token, cache, seconds=0.01).by_operation()[-1].work
        Work(operation='lm_head', layer=None, flops=131072, bytes=264192)
        """
        from gpt2cy.inspection.profiling import profile   # tools are imported when they are asked for
        return profile(self, tokens, cache, last_only=last_only, seconds=seconds)

    # ---- files: doors to gpt2cy.weights, which is imported when one is opened ----------------------

    @classmethod
    @cython.binding(True)   # in the stable ABI Cython can make class methods of its own functions only
    def from_pretrained(cls, source, *, revision=None, token=None, local_files_only=False, cache_dir=None):
        """A model from a checkpoint: a file, a folder, or an id on the Hugging Face hub.

        Parameters
        ----------
        source : str or Path
            Such as "openai-community/gpt2". Formats: safetensors, PyTorch and nanoGPT, llm.c, GGUF
            (docs/checkpoints.md); float16, bfloat16 and quantised weights become float32.
        revision, token, local_files_only, cache_dir
            For the hub, as huggingface_hub takes them.

        Returns
        -------
        GPT

        Raises
        ------
        ValueError
            If a file is of no known format, damaged, refused, or does not fit its configuration: the message
            lists all that is wrong with it.
        OSError
            If a file is missing or cannot be read, or the hub does not answer.
        MemoryError
            If the weights cannot be allocated.
        ImportError
            If the format or the hub needs a package that is not installed; the message says which.

        Warns
        -----
        UserWarning
            If the file has a head that differs from `wte`, but the configuration ties them.

        Examples
        --------
        >>> import gpt2cy
        >>> gpt2cy.GPT.from_pretrained("no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: source: no file or folder 'no/such/folder', and no id of a model either
        """
        from gpt2cy import weights   # the one door to files, opened when it is asked for
        cdef GPT model
        with weights.open_checkpoint(source, revision=revision, token=token, local_files_only=local_files_only,
                                     cache_dir=cache_dir) as checkpoint:
            model = cls.__new__(cls, checkpoint.config, _blank=True)
            model.arena.enter_write()
            try:
                weights.load_into(checkpoint, model.parameters.put)
            finally:
                model.arena.leave_write()
        return model

    def save_pretrained(self, folder, *, max_shard_size="5GB"):
        """Write config.json and model.safetensors, as Hugging Face's transformers reads them.

        The old files of the folder are replaced when the new ones are complete, so it may be the one that the
        model was loaded from. Weights cannot be assigned meanwhile; calls go on.

        Parameters
        ----------
        folder : path-like
            Made if it is not there.
        max_shard_size : int or str
            Bytes of one file, also as "5GB" or "200MiB"; a larger model is written as several and an index.

        Raises
        ------
        ValueError
            If the head has a bias that is not zero: the format has none. Nothing has been written then.
        TypeError, ValueError
            If an argument is of the wrong kind or out of range.
        OSError
            If the files cannot be written; what was there before is unharmed.
        RuntimeError
            If weights are being assigned by another thread.

        Examples
        --------
        >>> import os, tempfile, gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     sorted(os.listdir(folder))
        ['config.json', 'model.safetensors']
        """
        self.write(folder, "safetensors", {"max_shard_size": max_shard_size})

    def save(self, path, format="safetensors"):
        """Write the model in one of several formats.

        Parameters
        ----------
        path : path-like
            A folder for "safetensors" (`save_pretrained`), a file for the others.
        format : {"safetensors", "llm.c", "gguf"}
            "llm.c" is its .bin of float32 weights; "gguf" is llama.cpp's, in float32, and needs the package gguf.

        Raises
        ------
        ValueError
            If the format cannot express the model, naming what: an activation, a head of its own, ... Nothing has
            been written then.
        TypeError, ValueError, OSError, RuntimeError
            As `save_pretrained`.
        ImportError
            If the format needs a package that is missing.

        Examples
        --------
        >>> import os, tempfile, gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny", tie_weights=True), seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "tiny.bin")
        ...     model.save(path, format="llm.c")
        ...     os.path.getsize(path)
        2708992
        """
        self.write(path, format, {})

    cdef int write(self, path, form, dict options) except -1:
        from gpt2cy.weights import writers
        self.arena.enter_read()   # one state of the weights from the first tensor to the last
        try:
            writers.save(self.config, self.parameters, path, form, **options)
        finally:
            self.arena.leave_read()
        return 0

    # ---- weights ------------------------------------------------------------------------------

    def named_parameters(self):
        """Iterate over (name, array) in model order, with Hugging Face's GPT-2 names and layouts.

        Arrays are fresh read-only float32 copies, made one at a time; a tied head is not listed again.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> name, array = next(model.named_parameters())
        >>> name, array.shape
        ('wte.weight', (512, 128))
        """
        for name in self.parameters:
            yield name, self.parameters.read(name)

    def state_dict(self):
        """All parameters as a dict of fresh arrays: ``dict(model.named_parameters())``, all of one moment.

        Raises
        ------
        RuntimeError
            If another thread is assigning weights.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.state_dict()["h.0.attn.c_attn.weight"].shape
        (128, 384)
        """
        self.arena.enter_read()
        try:
            return dict(self.named_parameters())
        finally:
            self.arena.leave_read()

    def load_state_dict(self, mapping):
        """Set all parameters from a mapping of Hugging Face GPT-2 names to arrays.

        Parameters
        ----------
        mapping : mapping of str to array_like
            The names and shapes of `state_dict`, any float dtype. A tied model accepts `lm_head.weight` too
            if it equals `wte.weight`.

        Raises
        ------
        ValueError
            Listing every missing, unexpected and misshapen name at once; nothing has been changed then.
        TypeError
            If `mapping` is none.
        RuntimeError
            If a call is using the model; nothing has been changed then.

        Examples
        --------
        >>> import gpt2cy
        >>> config = gpt2cy.GPTConfig.preset("tiny")
        >>> a, b = gpt2cy.GPT(config, seed=0), gpt2cy.GPT(config, seed=1)
        >>> b.load_state_dict(a.state_dict())
        >>> bool((a([1, 2]) == b([1, 2])).all())
        True
        """
        self.parameters.load(mapping)

    # ---- memory, copies, text -------------------------------------------------------------------

    def release_memory(self):
        """Give back to the system what is kept from one call to the next: a workspace, and the last large result.

        The next call takes new memory, and so a little longer. A call that finds too little memory gives the
        result's back by itself. What choosing tokens keeps is not the model's and stays: one block for the whole
        process, 24 bytes for each id of the vocabulary and each thread.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> model.next_logits([1, 2, 3]).shape
        (512,)
        >>> model.release_memory()
        """
        self.results.drop()
        self.scratch.drop()

    @property
    def nbytes(self):
        """Bytes of the weights."""
        return self.arena.nbytes

    def __reduce__(self):
        return reduced(self, (self.config,), {"init_std": 0.0}, self.state_dict())

    def __setstate__(self, state):
        self.load_state_dict(plain(self, state))

    def __sizeof__(self):
        return object.__sizeof__(self) + self.arena.nbytes

    def __repr__(self):
        config = self.config
        return (f"GPT({config.n_layers} layers, {config.n_heads} heads, width {config.n_embd}, vocabulary "
                f"{config.vocab_size}, {config.n_params:,} parameters)")
