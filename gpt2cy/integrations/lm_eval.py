# SPDX-License-Identifier: Apache-2.0
"""The model "gpt2cy" of EleutherAI's lm-evaluation-harness, which must be installed.

Importing this module registers it:

    import gpt2cy.integrations.lm_eval
    results = lm_eval.simple_evaluate(model="gpt2cy", model_args={"pretrained": "my-model"}, tasks=["piqa"])

and on the command line it stands before what ``lm_eval`` itself takes:

    python -m gpt2cy.integrations.lm_eval --model gpt2cy --model_args pretrained=my-model --tasks piqa

The rules are those of the harness' own model "hf" for the same checkpoint, and so are the results: a context
and its continuation are encoded together and cut where the context's own ids end, spaces at the context's end
belong to the continuation, an empty context is the end-of-text token, a context that is too long loses its
beginning (with a warning), and probabilities are shares of all of the model's ids, padded ones too.
"""

import logging

import numpy as np

# Not checked as types: the harness is an extra, and not there where the package's types are tested.
try:
    from lm_eval import utils  # type: ignore
    from lm_eval.api.model import TemplateLM  # type: ignore
    from lm_eval.api.registry import register_model  # type: ignore
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs  # type: ignore
    from tqdm import tqdm  # type: ignore
except ModuleNotFoundError as error:
    needed = "the evaluation harness is needed: pip install 'gpt2cy[lm-eval,text]'"
    raise ModuleNotFoundError(f"{needed} ({error})", name=error.name) from None

import gpt2cy
from gpt2cy.generation.generate import run
from gpt2cy.generation.sampling import Sampling
from gpt2cy.generation.text import fitted

CHUNK = 1024  # requests that are scored together: answers to one question are neighbours

_log = logging.getLogger(__name__)


@register_model("gpt2cy")
class HarnessModel(TemplateLM):
    """A checkpoint as the harness sees it.

    Parameters
    ----------
    pretrained : str, path or LanguageModel
        As `gpt2cy.load`.
    tokenizer, revision
        As `gpt2cy.load`.
    batch_size : int or str
        How many texts are generated together; "auto" is 16. Scoring chooses by itself. It changes no result.
    max_length : int, optional
        How many tokens are seen at most; None is all that the model has positions for.
    max_gen_toks : int
        How many tokens are generated where a task does not say.
    seed : int
        For tasks that sample.
    max_batch_size, device
        Handed in by the harness ("cuda:0" where nobody says otherwise), and ignored: there is only the CPU.

    Raises
    ------
    ValueError
        When the tokenizer has no end-of-text token, or an argument is out of range. Else as `gpt2cy.load`.
    """

    def __init__(
        self,
        pretrained,
        tokenizer=None,
        revision=None,
        batch_size=1,
        max_batch_size=None,
        device=None,
        max_length=None,
        max_gen_toks=256,
        seed=0,
    ):
        super().__init__()
        loaded = isinstance(pretrained, gpt2cy.LanguageModel)
        self.lm = pretrained if loaded else gpt2cy.load(pretrained, tokenizer=tokenizer, revision=revision)
        self.tokenizer = self.lm.tokenizer
        if self.tokenizer.eos_id is None:
            raise ValueError("tokenizer: expected one with an end-of-text token, got one without")
        positions = self.lm.model.config.block_size
        self.max_length = positions if max_length is None else int(max_length)
        if not 1 <= self.max_length <= positions:
            raise ValueError(f"max_length: expected 1 to the block_size of {positions}, got {max_length}")
        self.batch_size = 16 if str(batch_size).startswith("auto") else int(batch_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size: expected an integer >= 1, got {batch_size}")
        self.max_gen_toks = int(max_gen_toks)
        self.seed = int(seed)

    @property
    def eot_token_id(self):
        """The id that ends a document, and that stands for an empty context."""
        return self.tokenizer.eos_id

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        """Ids of a text, special tokens in it taken as such, as "hf" does; nothing is put before it."""
        return self.tokenizer.encode(string, allow_special=True)

    def get_model_info(self):
        """What the harness keeps beside the results."""
        return {"model_num_parameters": self.lm.model.config.n_params, "gpt2cy_version": gpt2cy.__version__}

    # ---- scoring -----------------------------------------------------------------------------------------

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
        """(key, context ids, continuation ids) -> (sum of logprobs, whether each was the likeliest)."""
        answers = []
        with tqdm(total=len(requests), desc="gpt2cy: logprobs", disable=disable_tqdm) as bar:
            for first in range(0, len(requests), CHUNK):
                chunk = requests[first : first + CHUNK]
                found = self._score(chunk)
                for (key, _, _), answer in zip(chunk, found, strict=True):
                    if key is not None:  # a part of a text has none
                        self.cache_hook.add_partial("loglikelihood", key, answer)
                answers += found
                bar.update(len(chunk))
        return answers

    def _score(self, requests):
        """The same of some of the requests."""
        sequences, starts = [], []
        for _, context, continuation in requests:
            context = context or [self.prefix_token_id]  # one of spaces, which belong to the continuation
            if not 1 <= len(continuation) <= self.max_length:
                raise ValueError(
                    f"continuation: expected 1 to {self.max_length} tokens, got {len(continuation)}"
                )
            ids = [*context, *continuation][-(self.max_length + 1) :]
            cut = len(context) + len(continuation) - len(ids)
            if cut:
                _log.warning(
                    "a context of %d tokens before %d does not fit %d positions: %d cut from its left",
                    *(len(context), len(continuation), self.max_length, cut),
                )
            sequences.append(ids)
            starts.append(len(ids) - len(continuation))
        found = self.lm.model.score_many(sequences, starts)
        return [(scores.logprob, scores.is_greedy) for scores in found]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """The logprob of whole texts, in the harness' own windows."""
        windows, counts = [], []
        for request in requests:
            found = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [(None, *utils.make_disjoint_window(window)) for window in found]
            windows += found
            counts.append(len(found))
        answers = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = [sum(next(answers)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    # ---- generation --------------------------------------------------------------------------------------

    def generate_until(self, requests, disable_tqdm=False):
        """Texts that follow contexts, up to the first stop string; greedy unless a task samples."""
        arguments = [request.args for request in requests]
        rows = [self._row(context, settings) for context, settings in arguments]
        found = []
        with tqdm(total=len(rows), desc="gpt2cy: texts", disable=disable_tqdm) as bar:
            for first in range(0, len(rows), self.batch_size):
                batch = rows[first : first + self.batch_size]
                keys = [(self.seed, first + i) for i in range(len(batch))]
                prompts, settings = zip(*batch, strict=True)
                results = run(self.lm.model, prompts, settings, keys, tokenizer=self.tokenizer)
                for result, own, given in zip(results, settings, arguments[first:], strict=False):
                    text = self._answer(result, own)
                    self.cache_hook.add_partial("generate_until", given, text)
                    found.append(text)
                bar.update(len(batch))
        return found

    def _row(self, context, settings):
        """The ids of a context, without those that leave no room, and a Sampling."""
        kwargs = normalize_gen_kwargs(settings, self.max_gen_toks)
        end = self.tokenizer.token_text(self.eot_token_id)
        stop = [text for text in handle_stop_sequences(kwargs.pop("until"), end) if text]
        n_new = kwargs.pop("max_gen_toks")
        room = self.max_length - n_new
        if room < 1:
            raise ValueError(
                f"max_gen_toks: expected less than the {self.max_length} tokens that are seen, got {n_new}"
            )
        if not kwargs.pop("do_sample"):
            kwargs["temperature"] = 0.0
        ids = self.tok_encode(context) or self.lm.beginning()
        if len(ids) > room:
            _log.warning(
                "a context of %d tokens leaves no room for %d more: %d cut from its left",
                *(len(ids), n_new, len(ids) - room),
            )
        ours = Sampling(max_new_tokens=n_new, stop=stop).merged(**kwargs)
        return np.array(ids[-room:], np.int64), fitted(self.lm, ours)

    def _answer(self, result, settings):
        """What counts of a text: as "hf" cuts it, where one token has completed several stop strings."""
        tokens = result.tokens[:-1] if result.finish_reason == "stop_id" else result.tokens
        text = self.lm.decode(tokens)
        for stop in settings.stop:
            text = text.split(stop)[0]
        return text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # type: ignore  # as above

    cli_evaluate()
