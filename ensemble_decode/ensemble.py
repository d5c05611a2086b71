"""``Ensemble``: load several models, generate, stream."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from ensemble_decode.decode.engine import Engine
from ensemble_decode.decode.loop import run
from ensemble_decode.decode.prompts import ChatMode, Prompt, SystemMode, as_prompts, check_prompt_type, prompt_ids
from ensemble_decode.decode.scheduler import PREFILL_TOKENS, Scheduler
from ensemble_decode.decode.sequence import Request, Row, check_prompt
from ensemble_decode.errors import ContextError, EnsembleError, InputError
from ensemble_decode.members.memory import cache_limits
from ensemble_decode.members.per_model import per_model
from ensemble_decode.members.transformers.loading import Device, Dtype, load_all
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.methods import Method, UniTE
from ensemble_decode.methods.base import participants
from ensemble_decode.outputs import Completion, Delta
from ensemble_decode.sampling import Sampling
from ensemble_decode.vocab.aligned import AlignedVocab

if TYPE_CHECKING:
    from ensemble_decode.decode.batch_run import BatchRun
    from ensemble_decode.decode.requests import BatchRequest, Order

GREEDY = Sampling()


def check_weights(weight: float | Sequence[float] | None, models: int) -> list[float]:
    """Weights that sum to 1.

    Args:
        weight: One value for all models, or one per model; None: all equal.
        models: The number of models.

    Raises:
        InputError: A weight is negative, infinite or no number, or all are 0.
    """
    values = []
    for m, given in enumerate(per_model(1.0 if weight is None else weight, models, "weight")):
        value = float(given) if isinstance(given, Real) and not isinstance(given, bool) else math.nan
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"weight: the weight of model {m} must be a finite number, 0 or more; got {given!r}")
        values.append(value)
    total = sum(values)
    if total == 0:
        raise InputError("weight: at least one weight must be above 0, all are 0")
    return [value / total for value in values]


class Ensemble:
    """Several causal language models, each with its own tokenizer, that write one text together.

    Use ``Ensemble.load`` for models by name, or this constructor for runners and an aligned vocabulary made by hand.
    Model 0 is the primary.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        tokenizers: Sequence[Any],
        vocab: AlignedVocab,
        weight: float | Sequence[float] | None = None,
    ) -> None:
        if not runners or not len(runners) == len(tokenizers) == len(vocab.models):
            raise InputError(
                "an ensemble needs one runner and one tokenizer per model of its vocabulary: "
                f"got {len(runners)} runners and {len(tokenizers)} tokenizers for {len(vocab.models)} models"
            )
        self.runners = list(runners)
        self.tokenizers = list(tokenizers)
        self.vocab = vocab
        self.weights = check_weights(weight, len(self.runners))

    # -- use -------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        method: Method | None = None,
        max_new_tokens: int = 128,
        stop: str | bytes | Sequence[str | bytes] | None = None,
        sampling: Sampling = GREEDY,
        batch_size: int = 32,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        row_ids: Sequence[int] | None = None,
        trace: bool = False,
        errors: Literal["return", "raise"] = "return",
        on_delta: Callable[[Delta], None] | None = None,
    ) -> list[Completion]:
        """Complete each prompt; results in the order of the prompts, each equal to what its prompt gives alone.

        ``prompts``: a string, a list of chat messages, or a list of those. ``method`` defaults to ``UniTE()``. At most
        ``batch_size`` rows run at a time; a row that ends is replaced at once. ``chat='plain'`` sends chat messages without any
        template, ``system='merge'`` moves a system message into the first user message where a template refuses it.
        Sampling depends on (seed, row id, step): ``row_ids`` defaults to the places in ``prompts``. ``trace`` keeps every
        step's candidates. ``on_delta`` is called with every piece of text as it becomes final.

        A row that cannot be run ends alone, with ``finish_reason='error'`` and a message; with ``errors='raise'`` the first such
        error is raised once all rows have ended. Arguments that no row could use raise ``InputError``.
        """
        if errors not in ("return", "raise"):
            raise InputError(f"errors must be 'return' or 'raise', got {errors!r}")
        rows = self._rows(prompts, method, max_new_tokens, stop, chat, system, row_ids, trace)
        for row in self._run(rows, method, sampling, batch_size):
            if on_delta is not None:
                on_delta(row.delta())
        done = [row.completion() for row in rows]
        return [one.raise_for_error() for one in done] if errors == "raise" else done

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        method: Method | None = None,
        max_new_tokens: int = 128,
        stop: str | bytes | Sequence[str | bytes] | None = None,
        sampling: Sampling = GREEDY,
        batch_size: int = 32,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        row_ids: Sequence[int] | None = None,
    ) -> Iterator[Delta]:
        """Like ``generate``, as deltas: whole characters only, never a byte that a stop string or a rollback may take back.

        With several prompts the deltas interleave; ``delta.row`` says whose they are. The joined texts of a row equal its
        completion's text.
        """
        rows = self._rows(prompt, method, max_new_tokens, stop, chat, system, row_ids, False)
        return self._stream(rows, method, sampling, batch_size)

    def _stream(self, rows: list[Row], method: Method | None, sampling: Sampling, batch_size: int) -> Iterator[Delta]:
        for row in self._run(rows, method, sampling, batch_size):
            delta = row.delta()
            if delta.text or delta.token_ids or delta.finish_reason:
                yield delta

    def generate_batch(
        self,
        requests: Iterable[Prompt | BatchRequest],
        *,
        method: Method | None = None,
        max_new_tokens: int = 128,
        stop: str | bytes | Sequence[str | bytes] | None = None,
        sampling: Sampling = GREEDY,
        batch_size: int = 32,
        memory: int | float | str | None = None,
        order: Order = "input",
        prefill_tokens: int = PREFILL_TOKENS,
        share_prefixes: bool = True,
        chat: ChatMode = "template",
        system: SystemMode = "error",
    ) -> BatchRun:
        """Complete any number of prompts at high throughput; an iterator of results, which reads ``requests`` as there is room.

        ``requests``: prompts as in ``generate``, or ``BatchRequest`` with settings of their own. ``memory``: what the KV caches of all
        models may take at any moment: bytes, a size such as ``"8GiB"``, or a share of what is free, ``0.5`` or ``"50%"``; None: 80 % of
        a GPU's free memory, 50 % of the host's. ``order``: ``"input"``, or ``"finished"``: as rows end. ``prefill_tokens``: the most
        prompt tokens that one round reads of each model. ``share_prefixes``: prompts that begin with the same tokens of a model, 32 or more, are
        read once and copied from cache to cache.

        Each result equals what its prompt gives alone, sampled too: without a seed of its own a row is keyed by its place in
        ``requests``. Closing the iterator drops the rows in flight. Raises as ``generate``.
        """
        from ensemble_decode.decode.batch_run import BatchRun

        return BatchRun(
            self,
            requests,
            method=method or UniTE(),
            max_new_tokens=max_new_tokens,
            stop=stop,
            sampling=sampling,
            batch_size=batch_size,
            memory=memory,
            order=order,
            prefill_tokens=prefill_tokens,
            share_prefixes=share_prefixes,
            chat=chat,
            system=system,
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _run(self, rows: Sequence[Row], method: Method | None, sampling: Sampling, batch_size: int) -> Iterator[Row]:
        if not sampling.greedy and sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(62))
        engine = Engine(self.runners, self.vocab, self.weights, method or UniTE(), sampling)
        return run(engine, Scheduler(self.runners, batch_size), rows)

    def _rows(
        self,
        prompts: Prompt | Sequence[Prompt],
        method: Method | None,
        max_new_tokens: int,
        stop: str | bytes | Sequence[str | bytes] | None,
        chat: ChatMode,
        system: SystemMode,
        row_ids: Sequence[int] | None,
        trace: bool,
    ) -> list[Row]:
        method = method or UniTE()
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be a positive integer, got {max_new_tokens!r}")
        if chat not in ("template", "plain"):
            raise InputError(f"chat must be 'template' or 'plain', got {chat!r}")
        if system not in ("error", "merge"):
            raise InputError(f"system must be 'error' or 'merge', got {system!r}")
        stops = [stop] if isinstance(stop, (str, bytes)) else list(stop or ())
        used = participants(method, self.runners)
        items, _ = as_prompts(prompts)
        if row_ids is not None and len(row_ids) != len(items):
            raise InputError(f"row_ids: {len(items)} prompts need {len(items)} ids, got {len(row_ids)}")
        rows = []
        for number, item in enumerate(items):
            seed_row = number if row_ids is None else int(row_ids[number])
            request = Request(number, [], max_new_tokens, stops, seed_row, trace)
            rows.append(self.make_row(item, request, method, used, chat, system))
        return rows

    def make_row(
        self, prompt: Prompt, request: Request, method: Method, used: Sequence[int], chat: ChatMode, system: SystemMode
    ) -> Row:
        """A row of ``method``, which ``used`` models take part in; ``request`` gets its prompt's ids here.

        A prompt that cannot be used makes a row that has already failed.
        """
        ids: list[list[int]] = [[] for _ in self.runners]
        request.prompt_ids, request.prompt = ids, prompt
        failed: EnsembleError | None = None
        try:
            check_prompt_type(prompt)
            for m in used:
                ids[m] = self._prompt_ids(m, prompt, chat, system)
            check_prompt(
                [ids[m] for m in used],
                [self.runners[m].context_length for m in used],
                [f"model {m} ({self.vocab.models[m].name})" for m in used],
            )
        except EnsembleError as error:
            failed = error
        lengths = [runner.context_length for runner in self.runners]
        row = Row(request, self.vocab, lengths, used, method.primary, method.retokenize_primary)
        if failed is not None:
            too_long = isinstance(failed, ContextError) and all(ids[m] for m in used)
            row.fail(str(failed), "too_long" if too_long else "prompt")
        return row

    def _prompt_ids(self, m: int, prompt: Prompt, chat: ChatMode, system: SystemMode) -> list[int]:
        model = self.vocab.models[m]
        return prompt_ids(self.tokenizers[m], model.bos_id, f"model {m} ({model.name})", prompt, chat, system)

    # -- loading ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        models: Sequence[Any],
        *,
        device: Device | Sequence[Device] = "auto",
        dtype: Dtype | Sequence[Dtype] = "auto",
        revision: str | Sequence[str | None] | None = None,
        weight: float | Sequence[float] | None = None,
        model_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        memory: int | float | str | None = None,
        attention: str = "auto",
        compile: bool = False,
        graphs: bool = False,
        few_rows: bool | None = None,
        chunk_tokens: int = 2048,
        cache_dir: str | os.PathLike[str] | None = "default",
    ) -> Ensemble:
        """Load models and align their vocabularies; model 0 becomes the primary.

        ``device``, ``dtype``, ``revision``, ``weight`` and ``model_kwargs`` are one value for all models, or a list with one per
        model.

        Args:
            models: Hub ids, local folders, GGUF files or ``demo:`` names (``ensemble-decode models list``).
            device: ``"auto"`` spreads the models over the CUDA devices, or takes the CPU.
            dtype: ``"auto"`` is the checkpoint's; on a CPU float32, unless the CPU multiplies bfloat16.
            revision: Of weights and tokenizer alike, for models of the hub.
            weight: A finite number, 0 or more; default: all equal.
            model_kwargs: What ``from_pretrained`` takes beside these: ``trust_remote_code`` (False unless it is given), ``token``,
                ``local_files_only``, ``quantization_config`` and the like.
            memory: What the KV caches of all models together may take: bytes, a size such as ``"8GiB"``, or a share of what is
                free, ``0.5`` or ``"50%"``. None: no limit.
            attention: ``"auto"``, ``"sdpa"`` or ``"flash"``.
            compile: Run decode steps through ``torch.compile``.
            graphs: Replay decode steps as CUDA graphs; needs CUDA devices.
            few_rows: Whether linear layers on a CPU read their weights once for a few rows. None: where that is faster.
            chunk_tokens: The most tokens in one forward of a model.
            cache_dir: Where the aligned vocabulary is kept; ``"default"``: the package's cache folder; None: nowhere.

        Raises:
            InputError: An argument that does not fit.
            ModelError: A model that cannot be loaded or cannot be rolled back; the message names it.
        """
        check_weights(weight, len(models))
        loaded = load_all(models, device=device, dtype=dtype, revision=revision, model_kwargs=model_kwargs)
        return cls.from_models(
            [entry.model for entry in loaded],
            [entry.tokenizer for entry in loaded],
            names=[entry.name for entry in loaded],
            eos_ids=[entry.eos_ids for entry in loaded],
            weight=weight,
            memory=memory,
            attention=attention,
            compile=compile,
            graphs=graphs,
            few_rows=few_rows,
            chunk_tokens=chunk_tokens,
            cache_dir=cache_dir,
        )

    @classmethod
    def from_models(
        cls,
        models: Sequence[Any],
        tokenizers: Sequence[Any],
        *,
        names: Sequence[str] | None = None,
        eos_ids: Sequence[Sequence[int]] | None = None,
        weight: float | Sequence[float] | None = None,
        memory: int | float | str | None = None,
        attention: str = "auto",
        compile: bool = False,
        graphs: bool = False,
        few_rows: bool | None = None,
        chunk_tokens: int = 2048,
        cache_dir: str | os.PathLike[str] | None = "default",
    ) -> Ensemble:
        """Make an ensemble of transformers models that are already loaded, each on its own device.

        Args:
            models: The models; model 0 becomes the primary.
            tokenizers: Their tokenizers.
            names: What messages call the models.
            eos_ids: Per model, beside the tokenizer's own; default: those of the model's generation config.
            weight: As in ``load``.
            memory: As in ``load``.
            attention: As in ``load``.
            compile: As in ``load``.
            graphs: As in ``load``.
            few_rows: As in ``load``.
            chunk_tokens: As in ``load``.
            cache_dir: As in ``load``.

        Raises:
            InputError: An argument that does not fit.
            ModelError: A model that cannot be rolled back; the message names it.
        """
        if len(models) != len(tokenizers):
            raise InputError(f"{len(models)} models need {len(models)} tokenizers, got {len(tokenizers)}")
        names = list(names or (f"model {m}" for m in range(len(models))))
        if eos_ids is None:
            eos_ids = [generation_eos(model) for model in models]
        sizes = [head_rows(model) for model in models]
        vocab = AlignedVocab.build(tokenizers, sizes=sizes, eos_ids=eos_ids, names=names, cache_dir=cache_dir)
        runners = [
            Runner(
                model,
                vocab.models[m],
                attention=attention,
                compile=compile,
                graphs=graphs,
                few_rows=few_rows,
                chunk_tokens=chunk_tokens,
                name=names[m],
            )
            for m, model in enumerate(models)
        ]
        if memory is not None:
            for runner, limit in zip(runners, cache_limits(runners, memory), strict=True):
                runner.limit_peak(limit)
        return cls(runners, tokenizers, vocab, weight)


def head_rows(model: Any) -> int:
    """V_m: the rows of a model's head, which may be padded past its tokenizer's ids."""
    return int(model.get_output_embeddings().weight.shape[0])


def generation_eos(model: Any) -> list[int]:
    """EOS ids of a model's generation config."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [] if stated is None else [stated] if isinstance(stated, int) else list(stated)
