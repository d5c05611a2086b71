"""``Ensemble``: load several models, generate, stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.loop import run
from ensemble_decode.decode.models import Defaults, Models
from ensemble_decode.decode.prompts import TEMPLATE, ChatMode, Prompt, Rendering, SystemMode, as_prompts
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.decode.scheduler import PREFILL_TOKENS, Scheduler
from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import InputError
from ensemble_decode.members.memory import cache_limits
from ensemble_decode.members.per_model import check_weights
from ensemble_decode.members.transformers.loading import Device, Dtype, load_all
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.methods import Method, UniTE
from ensemble_decode.methods.base import participants
from ensemble_decode.outputs import Completion, Delta
from ensemble_decode.settings import Sampling
from ensemble_decode.vocab.aligned import AlignedVocab

if TYPE_CHECKING:
    from ensemble_decode.decode.batch_run import BatchRun
    from ensemble_decode.decode.requests import Order
    from ensemble_decode.decode.session import Session

GREEDY = Sampling()


class Ensemble:
    """Several causal language models, each with its own tokenizer, that write one text together.

    Use ``Ensemble.load`` for models by name, or this constructor for members and an aligned vocabulary made by hand.

    Calls from several threads are safe: they take turns, round by round, in the order in which they came, and each gets
    what it would get alone. One batch for all callers is a ``session``.

    Args:
        runners: The models; the first is the primary.
        tokenizers: Their tokenizers.
        vocab: Their vocabularies, aligned.
        weight: One value for all models or one per model; default: all equal.

    Attributes:
        runners: As given.
        tokenizers: As given.
        vocab: As given.
        weights: One per model; they sum to 1.

    Raises:
        InputError: The numbers of runners, tokenizers and vocabularies differ, or a weight cannot be used.
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
        self._models = Models(self.runners, self.tokenizers, vocab, self.weights)

    # -- use -------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        method: Method | None = None,
        max_new_tokens: int = 128,
        stop: str | bytes | Sequence[str | bytes] | None = None,
        sampling: Sampling = GREEDY,
        weight: float | Sequence[float] | None = None,
        batch_size: int = 32,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        row_ids: Sequence[int] | None = None,
        trace: bool = False,
        errors: Literal["return", "raise"] = "return",
        on_delta: Callable[[Delta], None] | None = None,
    ) -> list[Completion]:
        """Complete each prompt.

        A row that cannot be run ends alone, with ``finish_reason='error'`` and a message. Arguments that no row could
        use are refused at once.

        Args:
            prompts: A string, a list of chat messages, a ``TokenPrompt``, or a list of those.
            method: Default: ``UniTE()``.
            max_new_tokens: The most tokens of the primary, END included.
            stop: The text ends before the first of these strings.
            sampling: How a token is chosen; default: greedy. A draw depends on the seed, the row's id and the step
                alone.
            weight: Of the models in this call; default: the ensemble's.
            batch_size: The most rows that run at a time; a row that ends is replaced at once.
            chat: ``"template"``: messages by each model's own chat template; ``"plain"``: their contents, blank lines
                between.
            system: What becomes of a system message that a template refuses: ``"error"``; or ``"merge"``, it goes in
                front of the first user message.
            add_generation_prompt: Whether the templates open the assistant's answer; None: unless the last message is
                continued.
            continue_final_message: Whether the models continue the last message.
            chat_template_kwargs: What the templates get beside the messages: one mapping for all models, or one per
                model.
            row_ids: The rows' ids in sampling; default: their places in ``prompts``.
            trace: Keep every step's candidates.
            errors: ``"return"``, or ``"raise"``: the first row's error is raised once all rows have ended.
            on_delta: Called with every piece of text as it becomes final.

        Returns:
            Completions in the order of the prompts, each equal to what its prompt gives alone.

        Raises:
            InputError: An argument that no row could use.
        """
        if errors not in ("return", "raise"):
            raise InputError(f"errors must be 'return' or 'raise', got {errors!r}")
        rows, defaults = self._prepare(
            prompts, method, max_new_tokens, stop, sampling,
            Rendering(chat, system, add_generation_prompt, continue_final_message, chat_template_kwargs),
            weight=weight, row_ids=row_ids, trace=trace,
        )  # fmt: skip
        for row in self._run(rows, defaults, batch_size):
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
        weight: float | Sequence[float] | None = None,
        batch_size: int = 32,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        row_ids: Sequence[int] | None = None,
    ) -> Iterator[Delta]:
        """Like ``generate``, as deltas: whole characters, never a byte that a stop string or a roll back may take away.

        With several prompts the deltas interleave. Closing or dropping the iterator frees the rows' memory.

        Args:
            prompt: As in ``generate``.
            method: As in ``generate``.
            max_new_tokens: As in ``generate``.
            stop: As in ``generate``.
            sampling: As in ``generate``.
            weight: As in ``generate``.
            batch_size: As in ``generate``.
            chat: As in ``generate``.
            system: As in ``generate``.
            add_generation_prompt: As in ``generate``.
            continue_final_message: As in ``generate``.
            chat_template_kwargs: As in ``generate``.
            row_ids: As in ``generate``.

        Returns:
            The deltas; ``delta.row`` says whose they are, and the joined texts of a row are its completion's text.

        Raises:
            InputError: As in ``generate``, at the call.
        """
        rows, defaults = self._prepare(
            prompt, method, max_new_tokens, stop, sampling,
            Rendering(chat, system, add_generation_prompt, continue_final_message, chat_template_kwargs),
            weight=weight, row_ids=row_ids,
        )  # fmt: skip
        return self._stream(self._run(rows, defaults, batch_size))

    def _stream(self, moved: Iterator[Row]) -> Iterator[Delta]:
        for row in moved:
            delta = row.delta()
            if delta.text or delta.token_ids or delta.finish_reason:
                yield delta

    def generate_batch(
        self,
        requests: Iterable[Prompt | BatchRequest | None],
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
        live: bool = False,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> BatchRun:
        """Complete any number of prompts at high throughput.

        Each result equals what its prompt gives alone, sampled too: without a seed of its own a row is keyed by its
        place in ``requests``. Closing or dropping the iterator drops the rows in flight.

        Args:
            requests: Prompts as in ``generate``, or ``BatchRequest`` with settings of their own, read as there is room.
                None among them says that there is no prompt for now; the rows that run go on.
            method: As in ``generate``.
            max_new_tokens: As in ``generate``.
            stop: As in ``generate``.
            sampling: As in ``generate``.
            batch_size: As in ``generate``.
            memory: What the KV caches of all models together may take at any moment: bytes, a size such as ``"8GiB"``,
                or a share of what is free, ``0.5`` or ``"50%"``. None: 80 % of a GPU's free memory, 50 % of the host's.
            order: ``"input"``, or ``"finished"``: results as rows end.
            prefill_tokens: The most prompt tokens that one round reads of each model.
            share_prefixes: Whether prompts that begin with the same tokens of a model, 32 or more, are read once and
                copied from cache to cache.
            live: Read ``requests`` in a thread of its own, so that the rows that run go on while it waits for more.
            chat: As in ``generate``.
            system: As in ``generate``.
            add_generation_prompt: As in ``generate``.
            continue_final_message: As in ``generate``.
            chat_template_kwargs: As in ``generate``.

        Returns:
            An iterator of ``BatchResult``; its ``counts`` say at any time how far it is.

        Raises:
            InputError: An argument that no row could use.
        """
        from ensemble_decode.decode.batch_run import BatchRun

        return BatchRun(
            self._models,
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
            rendering=Rendering(chat, system, add_generation_prompt, continue_final_message, chat_template_kwargs),
            live=live,
        )

    def session(
        self,
        *,
        method: Method | None = None,
        max_new_tokens: int = 128,
        stop: str | bytes | Sequence[str | bytes] | None = None,
        sampling: Sampling = GREEDY,
        batch_size: int = 32,
        memory: int | float | str | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        chat: ChatMode = "template",
        system: SystemMode = "error",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Session:
        """Open a batch that rows join and leave at any time, from any thread and from coroutines.

        Args:
            method: As in ``generate``, of requests that ask for no other; so with the arguments below.
            max_new_tokens: As in ``generate``.
            stop: As in ``generate``.
            sampling: As in ``generate``.
            batch_size: As in ``generate``.
            memory: As in ``generate_batch``.
            prefill_tokens: As in ``generate_batch``.
            chat: As in ``generate``.
            system: As in ``generate``.
            add_generation_prompt: As in ``generate``.
            continue_final_message: As in ``generate``.
            chat_template_kwargs: As in ``generate``.

        Raises:
            InputError: An argument that no row could use.
        """
        from ensemble_decode.decode.session import Session

        rendering = Rendering(chat, system, add_generation_prompt, continue_final_message, chat_template_kwargs)
        defaults = Defaults.make(method or UniTE(), max_new_tokens, stop, sampling, rendering)
        participants(defaults.method, self.runners)
        limits = cache_limits(self.runners, memory)
        return Session(self._models, defaults, batch_size=batch_size, limits=limits, prefill_tokens=prefill_tokens)

    # -- below a call ------------------------------------------------------------------------------------------------

    def prompt_ids(self, m: int, prompt: Prompt, rendering: Rendering = TEMPLATE) -> list[int]:
        """Model m's own ids of a prompt.

        Args:
            m: The model's number.
            prompt: As in ``generate``.
            rendering: How chat messages become text.

        Raises:
            InputError: The prompt cannot be used, or the model's template refuses it.
        """
        with self._models.turns:
            return self._models.prompt_ids(m, prompt, rendering)

    def rows(
        self, prompts: Prompt | Sequence[Prompt], *, method: Method | None = None, max_new_tokens: int = 128
    ) -> list[Row]:
        """The rows that ``generate`` would make of prompts, for callers who run them round by round.

        Args:
            prompts: As in ``generate``.
            method: As in ``generate``.
            max_new_tokens: As in ``generate``.
        """
        return self._prepare(prompts, method, max_new_tokens, None, GREEDY, TEMPLATE)[0]

    def run(self, rows: Sequence[Row], *, batch_size: int) -> Iterator[Row]:
        """Run rows of ``rows`` to their end, greedily; yields a row after each round that moved it.

        Args:
            rows: The rows.
            batch_size: The most that run at a time.
        """
        return self._run(rows, Defaults.make(UniTE(), 1, None, GREEDY), batch_size)

    def _run(self, rows: Sequence[Row], defaults: Defaults, batch_size: int) -> Iterator[Row]:
        turns = self._models.turns
        with turns:
            room = Room(self.runners, None, turns)
        return run(self._models.engine(defaults), Scheduler(self.runners, batch_size, room=room), rows, turns)

    def _prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        method: Method | None,
        max_new_tokens: int,
        stop: str | bytes | Sequence[str | bytes] | None,
        sampling: Sampling,
        rendering: Rendering,
        *,
        weight: float | Sequence[float] | None = None,
        row_ids: Sequence[int] | None = None,
        trace: bool = False,
    ) -> tuple[list[Row], Defaults]:
        defaults = Defaults.make(method or UniTE(), max_new_tokens, stop, sampling, rendering)
        participants(defaults.method, self.runners)
        if weight is not None:
            weight = check_weights(weight, len(self.runners))
        items = as_prompts(prompts)
        if row_ids is not None and len(row_ids) != len(items):
            raise InputError(f"row_ids: {len(items)} prompts need {len(items)} ids, got {len(row_ids)}")
        ids = range(len(items)) if row_ids is None else row_ids
        return [
            self._models.row(index, BatchRequest(item, weight=weight, row_id=row_id, trace=trace), defaults)
            for index, (item, row_id) in enumerate(zip(items, ids, strict=True))
        ], defaults

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

        ``device``, ``dtype``, ``revision``, ``weight`` and ``model_kwargs`` are one value for all models, or a list
        with one per model.

        Args:
            models: Hub ids, local folders, GGUF files or ``demo:`` names (``ensemble-decode models list``).
            device: ``"auto"`` spreads the models over the CUDA devices, or takes the CPU.
            dtype: ``"auto"`` is the checkpoint's; on a CPU float32, unless the CPU multiplies bfloat16.
            revision: Of weights and tokenizer alike, for models of the hub.
            weight: A finite number, 0 or more; default: all equal.
            model_kwargs: What ``from_pretrained`` takes beside these: ``trust_remote_code`` (False unless it is given),
                ``token``, ``local_files_only``, ``quantization_config`` and the like.
            memory: What the KV caches of all models together may take: bytes, a size such as ``"8GiB"``, or a share of
                what is free, ``0.5`` or ``"50%"``. None: no limit.
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
