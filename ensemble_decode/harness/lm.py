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
from ensemble_decode.harness.likelihood import Scored, chain_method, score
from ensemble_decode.methods import Single
from ensemble_decode.methods.flags import METHOD_OPTIONS, build_method
from ensemble_decode.sampling import Sampling

_log = logging.getLogger(__name__)

_BATCH = 8  # for batch_size=auto
_NEW_TOKENS = 256  # where a task does not say, as the harness's own models
_METHOD_KEYS = {option.replace("-", "_") for taken in METHOD_OPTIONS.values() for option in taken}
_LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "seed")


@register_model("ensemble_decode", "ensemble-decode")
class EnsembleLM(TemplateLM):
    """Several models as one: ``--model ensemble_decode --model_args models=A;B,method=safe,draft_length=5``.

    ``models``, ``weight``, ``device``, ``dtype``: one value, or several with semicolons between, or lists. ``method`` and its options: as
    on the command line of ``ensemble-decode generate``, with underscores. ``join``: where the tokens of a context and its
    continuation are parted; "harness": as the harness does it, by the number of tokens that the context has alone; "bytes": where
    the continuation's bytes begin, whatever spans the join. ``ensemble``: one that is loaded already, in place of ``models``.
    Raises ``InputError`` for an argument that is not known.
    """

    backend = "causal"

    def __init__(
        self,
        models: str | Sequence[str] | None = None,
        method: str = "unite",
        *,
        weight: Any = None,
        device: Any = None,
        dtype: Any = "auto",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        join: str = "harness",
        ensemble: Ensemble | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        unknown = sorted(set(options) - _METHOD_KEYS)
        if unknown:
            raise InputError(
                f"model_args: {', '.join(unknown)} is not known; of methods there are {', '.join(sorted(_METHOD_KEYS))}"
            )
        if join not in ("harness", "bytes"):
            raise InputError(f"model_args: join must be harness or bytes, got {join!r}")
        self.method = build_method(method, {key.replace("_", "-"): value for key, value in options.items()})
        if (models is None) == (ensemble is None):
            raise InputError("model_args: give models, such as models=demo:smollm2;demo:gemma3")
        if ensemble is None:
            numbers = _several(weight)
            ensemble = Ensemble.load(
                _several(models) or (),
                device=_one_or_several(device or "auto"),
                dtype=_one_or_several(dtype),
                weight=None if numbers is None else [float(w) for w in numbers],
            )
        self.ensemble = ensemble
        self.join = join
        self.batch = _batch_size(batch_size, max_batch_size)
        self._primary = self.method.primary
        self._device = ensemble.runners[self._primary].device
        self.tokenizer = ensemble.tokenizers[self._primary]
        self._vocab = ensemble.vocab.models[self._primary]

    # -- what the harness asks of a model ------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        return _prefix(self.tokenizer)

    @property
    def max_length(self) -> int:
        return self.ensemble.runners[self._primary].context_length

    @property
    def max_gen_toks(self) -> int:
        return _NEW_TOKENS

    @property
    def batch_size(self) -> int:
        return self.batch

    @property
    def tokenizer_name(self) -> str:
        return "__".join(model.name for model in self.ensemble.vocab.models).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The primary's template; for ``Single`` alone, since one text cannot carry every model's own template."""
        if not isinstance(self.method, Single) and len(self.ensemble.runners) > 1:
            raise InputError(
                "--apply_chat_template works with method=single: each model of an ensemble has its own template"
            )
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The primary's ids, as the harness's ``hf`` model makes them: no second BOS before a text that begins with one."""
        if add_special_tokens is None:
            prefix = self.tokenizer.decode([self.prefix_token_id])
            add_special_tokens = not (prefix and string.startswith(prefix))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    # -- log-likelihoods -----------------------------------------------------------------------------------------------

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As the harness parts them; where that leaves no token to score, or ``join="bytes"``, at the bytes of the join."""
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
        used = list(self.method.models(len(contexts)))
        if used == [self._primary]:
            return Scored(contexts, after)
        data = self._vocab.decode(after)
        if texts is not None and self._special(after):
            data = "".join(texts)[len(texts[0].rstrip()) :].encode()
            after = self._vocab.encode(data)
        whole = "".join(texts).encode() if texts is not None else self._vocab.decode(before) + data
        lead = whole[: -len(data)] if data and whole.endswith(data) else self._vocab.decode(before)
        text, rest = _whole_characters(lead)
        for m in used:
            if m != self._primary:
                contexts[m] = self._context(m, text, plain=texts is not None)
        return Scored(contexts, after, rest)

    def _context(self, m: int, text: str, plain: bool) -> list[int]:
        """Model m's ids of a context: a prompt, or a stretch within a long text (no BOS); its own prefix token where it is empty."""
        tokenizer, model = self.ensemble.tokenizers[m], self.ensemble.vocab.models[m]
        if not text:
            return [_prefix(tokenizer)]
        if plain:
            return prompt_ids(tokenizer, model.bos_id, f"model {m} ({model.name})", text)
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
        """The primary's ids of a whole text: of ``Single`` as the harness takes them, else those that every model can score."""
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
        """Texts up to each request's own stop strings; all requests share the decoder's batch."""
        asked = [self._request(i, *request.args) for i, request in enumerate(requests)]
        results = [""] * len(requests)
        run = self.ensemble.generate_batch(
            asked, method=self.method, max_new_tokens=_NEW_TOKENS, batch_size=self.batch, order="finished"
        )
        for done in tqdm(run, total=len(asked), disable=disable_tqdm, desc="Running generate_until requests"):
            if done.completion.error is not None:
                _log.warning("request %d gives no text: %s", done.index, done.completion.error)
            results[done.index] = done.completion.text
            self.cache_hook.add_partial("generate_until", requests[done.index].args, done.completion.text)
        return results

    def _request(self, number: int, context: str, kwargs: Mapping[str, Any]) -> BatchRequest:
        options = dict(kwargs)
        until = options.pop("until", None) or []
        lengths = [value for key in _LENGTH_KEYS if (value := options.pop(key, None)) is not None]
        sampled = options.pop("do_sample", None)
        given = {key: options.pop(key) for key in _SAMPLING_KEYS if key in options}
        if options:
            raise InputError(f"generation_kwargs: {', '.join(sorted(options))} is not known here")
        temperature = given.pop("temperature", None)
        if sampled is None:
            sampled = bool(temperature)
        if sampled:
            # the harness's other models take 1 where a task samples and says no temperature
            sampling = Sampling(temperature=1.0 if temperature is None else float(temperature), **given)
        else:
            sampling = Sampling()
        return BatchRequest(
            context,
            max_new_tokens=int(lengths[0]) if lengths else _NEW_TOKENS,
            stop=[until] if isinstance(until, str) else [stop for stop in until if stop],
            sampling=sampling,
            row_id=number,
        )


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


def _several(value: Any) -> list[Any] | None:
    """``A;B`` as a list."""
    if value is None:
        return None
    if isinstance(value, str):
        return [part.strip() for part in value.split(";") if part.strip()]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _one_or_several(value: Any) -> Any:
    if isinstance(value, str) and ";" in value:
        return _several(value)
    return value


def _batch_size(value: int | str, most: int | None) -> int:
    text = str(value)
    if text.startswith("auto"):
        return _BATCH if most is None else min(_BATCH, int(most))
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"batch_size must be a positive integer or auto, got {value!r}")
    return int(text)
