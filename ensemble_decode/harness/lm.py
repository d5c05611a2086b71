"""The model ``ensemble_decode`` of lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from ensemble_decode.decode.prompts import prompt_ids
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import InputError
from ensemble_decode.harness import arguments
from ensemble_decode.harness.arguments import NEW_TOKENS, generation, load_options, several
from ensemble_decode.harness.conversation import Conversation, conversation_ids, rendered
from ensemble_decode.harness.likelihood import Scored, chain_method, score
from ensemble_decode.methods import Method, Single
from ensemble_decode.methods.options import parse_method

_log = logging.getLogger(__name__)


@register_model("ensemble_decode", "ensemble-decode")
class EnsembleLM(TemplateLM):
    """Several models as one: ``--model ensemble_decode --model_args "models=A;B,method=safe(draft_length=5)"``.

    Args:
        models: The models, ``;`` between them, or a list; the first is the primary.
        method: Which method decodes: text or a mapping as ``parse_method`` takes it, or a ``Method``.
        join: Where the tokens of a context and its continuation are parted. ``harness``: as the harness does it, by the
            number of tokens that the context has alone. ``bytes``: where the continuation's bytes begin, whatever token
            spans the join.
        batch_size: Rows at once: a positive number or ``auto``.
        max_batch_size: The most that ``auto`` may be.
        ensemble: An ensemble that is loaded already, in place of ``models``.
        **options: What ``Ensemble.load`` takes beside the models. ``device``, ``dtype``, ``revision`` and ``weight``
            are one for all or one per model with ``;`` between.

    Raises:
        InputError: An argument is not known or does not fit.
    """

    backend = "causal"

    def __init__(
        self,
        models: str | Sequence[str] | None = None,
        method: str | Mapping[str, Any] | Method = "unite",
        *,
        join: str = "harness",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        ensemble: Ensemble | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        load = load_options(options)
        if join not in ("harness", "bytes"):
            raise InputError(f"model_args: join must be harness or bytes, got {join!r}")
        self.method = method if isinstance(method, Method) else parse_method(method)
        if (models is None) == (ensemble is None):
            raise InputError("model_args: give models, such as models=demo:smollm2;demo:gemma3")
        if ensemble is not None and load:
            raise InputError(f"{', '.join(sorted(load))}: the ensemble given is loaded already")
        self.ensemble = Ensemble.load(several(models), **load) if ensemble is None else ensemble
        self.join = join
        self.batch = arguments.batch_size(batch_size, max_batch_size)
        self._primary = self.method.primary
        self._used = list(self.method.models(len(self.ensemble.runners)))
        self._device = self.ensemble.runners[self._primary].device
        self.tokenizer = self.ensemble.tokenizers[self._primary]
        self._vocab = self.ensemble.vocab.models[self._primary]

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> EnsembleLM:
        """From ``--model_args`` as one text; the harness's own would cut a method's options at their commas."""
        return cls.create_from_arg_obj(arguments.model_args(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> EnsembleLM:
        """From ``--model_args`` as a mapping, beside the harness's own ``--device`` and ``--batch_size``."""
        return cls(**arguments.with_the_harness_own(arg_dict, additional_config))

    # -- what the harness asks of a model ------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The primary's end of text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without context."""
        return _prefix(self.tokenizer)

    @property
    def max_length(self) -> int:
        """Tokens that the primary's context holds."""
        return self.ensemble.runners[self._primary].context_length

    @property
    def max_gen_toks(self) -> int:
        """The most new tokens where a task names no number."""
        return NEW_TOKENS

    @property
    def batch_size(self) -> int:
        """Rows that run at a time."""
        return self.batch

    @property
    def tokenizer_name(self) -> str:
        """The names of all models, as a part of file names."""
        return "__".join(model.name for model in self.ensemble.vocab.models).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as the primary's template writes it; for an ensemble with the messages, for every model's own
        template.

        Raises:
            InputError: A model that takes part has no template, or its template refuses the messages.
        """
        texts = {
            m: rendered(self.ensemble.tokenizers[m], self._name(m), chat_history, add_generation_prompt)
            for m in self._used
        }
        return Conversation.of(texts[self._primary], chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that the harness logs: the primary's; of an ensemble every model's behind its name."""
        if not chat_template or self._used == [self._primary]:
            return super().chat_template(chat_template)
        return "\n\n".join(f"{self._name(m)}: {self.ensemble.tokenizers[m].chat_template}" for m in self._used)

    def _name(self, m: int) -> str:
        return f"model {m} ({self.ensemble.vocab.models[m].name})"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The primary's ids, as the harness's ``hf`` model makes them: no second BOS before a text that begins with
        one."""
        if add_special_tokens is None:
            prefix = self.tokenizer.decode([self.prefix_token_id])
            add_special_tokens = not (prefix and string.startswith(prefix))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    # -- log-likelihoods -----------------------------------------------------------------------------------------------

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As the harness parts them; where that leaves no token to score, or ``join="bytes"``, at the bytes of the
        join."""
        before, after = super()._encode_pair(context, continuation)
        whole = self.tok_encode(context + continuation)
        if after and (self.join == "harness" or whole[: len(before)] == before):
            return before, after
        spaces = len(context) - len(context.rstrip())
        text = context[len(context) - spaces :] + continuation
        return before, self._vocab.encode(text.encode())

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        chain_method(self.method)  # says at once where there is no such thing
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        for at in range(0, len(order), self.batch):
            part = order[at : at + self.batch]
            scored = score(self.ensemble, self.method, [self._scored(*requests[i]) for i in part])
            for i, result in zip(part, scored, strict=True):
                results[i] = result
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], result)
            bar.update(len(part))
        bar.close()
        return results

    def _scored(self, texts: tuple[str, str] | None, before: list[int], after: list[int]) -> Scored:
        """Every model's context: its own tokenization of the text before the primary's continuation."""
        contexts: list[list[int]] = [[] for _ in self.ensemble.runners]
        contexts[self._primary] = before
        if self._used == [self._primary]:
            return Scored(contexts, after)
        if texts is not None and isinstance(texts[0], Conversation):
            for m in self._used:
                contexts[m] = conversation_ids(self.ensemble.tokenizers[m], self._name(m), texts[0])
            return Scored(contexts, self._vocab.encode(texts[1].encode()))
        data = self._vocab.decode(after)
        if texts is not None and self._special(after):
            data = "".join(texts)[len(texts[0].rstrip()) :].encode()
            after = self._vocab.encode(data)
        whole = "".join(texts).encode() if texts is not None else self._vocab.decode(before) + data
        lead = whole[: -len(data)] if data and whole.endswith(data) else self._vocab.decode(before)
        text, rest = _whole_characters(lead)
        for m in self._used:
            if m != self._primary:
                contexts[m] = self._context(m, text, plain=texts is not None)
        return Scored(contexts, after, rest)

    def _context(self, m: int, text: str, plain: bool) -> list[int]:
        """Model m's ids of a context: a prompt, or a stretch within a long text (no BOS); its own prefix token where it
        is empty."""
        tokenizer, model = self.ensemble.tokenizers[m], self.ensemble.vocab.models[m]
        if not text:
            return [_prefix(tokenizer)]
        if plain:
            return prompt_ids(tokenizer, model.bos_id, self._name(m), text)
        return model.encode(text.encode())

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in the harness's own windows over the primary's tokens."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            for before, after in utils.get_rolling_token_windows(
                token_list=self._text_ids(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            ):
                windows.append((None, *utils.make_disjoint_window((before, after))))
                owners.append(number)
        totals = [0.0] * len(requests)
        for number, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[number] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _text_ids(self, text: str) -> list[int]:
        """The primary's ids of a whole text: of ``Single`` as the harness takes them, else those that every model can
        score."""
        if isinstance(self.method, Single):
            return self.tok_encode(text)
        ids = self.tok_encode(text, add_special_tokens=False)
        return self._vocab.encode(text.encode()) if self._special(ids) else ids

    def _special(self, ids: Sequence[int]) -> bool:
        """Tokens among them that stand for no bytes, which other models cannot score: their text is then spelled out.

        END as the last token is a candidate of every model and stays.
        """
        pieces, to_cid = self._vocab.token_bytes, self.ensemble.vocab.to_cid[0]
        return any(not pieces[token] for token in ids[:-1]) or any(to_cid[token] < 0 for token in ids[-1:])

    # -- generation ----------------------------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts up to each request's own stop strings; all requests share the decoder's batch.

        Raises:
            InputError: A setting does not fit, or no request at all can be run.
        """
        asked = [self._request(i, *request.args) for i, request in enumerate(requests)]
        results, failed = [""] * len(requests), list[str]()
        run = self.ensemble.generate_batch(
            asked, method=self.method, max_new_tokens=NEW_TOKENS, batch_size=self.batch, order="finished"
        )
        for done in tqdm(run, total=len(asked), disable=disable_tqdm, desc="Running generate_until requests"):
            if done.completion.error is not None:
                _log.warning("request %d gives no text: %s", done.index, done.completion.error)
                failed.append(done.completion.error)
            results[done.index] = done.completion.text
            self.cache_hook.add_partial("generate_until", requests[done.index].args, done.completion.text)
        if failed and len(failed) == len(requests):
            raise InputError(f"none of {len(requests)} requests gives a text; the first: {failed[0]}")
        return results

    def _request(self, number: int, context: str, kwargs: Mapping[str, Any]) -> BatchRequest:
        prompt: Any = context
        if isinstance(context, Conversation) and self._used != [self._primary]:
            if not context.opens:
                raise InputError("a task with a gen_prefix: an ensemble cannot continue a message that has begun")
            prompt = context.messages
        return BatchRequest(prompt, row_id=number, **generation(kwargs))


def _prefix(tokenizer: Any) -> int:
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def _whole_characters(data: bytes) -> tuple[str, bytes]:
    """A text's characters, and the bytes of one that is not finished."""
    for cut in range(len(data), max(len(data) - 4, -1), -1):
        try:
            return data[:cut].decode(), data[cut:]
        except UnicodeDecodeError:
            continue
    return "", data
