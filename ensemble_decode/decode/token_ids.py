"""Every model's ids of one row's text, how much of them the caches hold, and what the contexts still take."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode.vocab.aligned import AlignedVocab
from ensemble_decode.vocab.text import IncrementalTokens


class TokenIds:
    """The ids of one row in every model.

    The primary's ids are those that it emitted; a model that *follows* has ``T_m(text)``. The primary follows, too,
    where ``retokenize_primary`` is set.

    Args:
        vocab: The aligned vocabulary.
        prompts: Every model's ids of the prompt; empty for models that take no part.
        context_lengths: Every model's.
        models: The models that take part, ascending.
        primary: The model whose ids are reported.
        retokenize_primary: Whether the primary's ids follow the text.

    Attributes:
        ids: Per model, its ids of the text.
        held: Per model: so many leading ids of prompt + ids are in its cache, at least.
        models: The models that still take part.
    """

    def __init__(
        self,
        vocab: AlignedVocab,
        prompts: Sequence[list[int]],
        context_lengths: Sequence[int],
        models: Sequence[int],
        primary: int,
        retokenize_primary: bool,
    ) -> None:
        self._vocab = vocab
        self.prompts = prompts
        self.context_lengths = context_lengths
        self.models = models
        self.primary = primary
        self.retokenize_primary = retokenize_primary
        self.ids: list[list[int]] = [[] for _ in vocab.models]
        self.held = [0] * len(vocab.models)
        self._following: dict[int, IncrementalTokens] = {}
        self._follow(models)

    def _follow(self, models: Sequence[int]) -> None:
        for m in models:
            if m != self.primary or self.retokenize_primary:
                self._following.setdefault(m, IncrementalTokens(self._vocab.models[m]))

    # -- reading -----------------------------------------------------------------------------------------------------

    def total(self, m: int) -> int:
        """The number of model m's ids, prompt included."""
        return len(self.prompts[m]) + len(self.ids[m])

    def pending(self, m: int) -> list[int]:
        """The ids that model m must still run to know what comes next; at least one."""
        prompt, ids = self.prompts[m], self.ids[m]
        start = min(self.held[m], len(prompt) + len(ids) - 1)
        return prompt[start:] + ids if start < len(prompt) else ids[start - len(prompt) :]

    def spell(self, m: int, data: bytes) -> list[int]:
        """``T_m(data)`` of a text near the row's own, for a model that follows."""
        return self._following[m].peek(data)

    # -- following the text ------------------------------------------------------------------------------------------

    def update(self, data: bytes) -> None:
        """Bring the ids of every model that follows up to date with the text ``data``."""
        for m, tokens in self._following.items():
            kept = tokens.update(data)
            self.ids[m] = tokens.ids
            self.held[m] = min(self.held[m], len(self.prompts[m]) + kept)

    def cut_primary(self, length: int) -> None:
        """Cut the ids that the primary emitted to the first ``length``."""
        del self.ids[self.primary][length:]
        self.held[self.primary] = min(self.held[self.primary], self.total(self.primary))

    def drop(self, m: int) -> None:
        """Model m takes no further part. The primary's ids are still kept up to date, for they are reported."""
        self.models = [other for other in self.models if other != m]
        if m != self.primary:
            del self._following[m]
            self.ids[m] = []

    def forget_caches(self) -> None:
        """The caches hold nothing of this row: prompt and text are to be read again."""
        self.held[:] = [0] * len(self.held)

    def restore(self, data: bytes, primary_ids: Sequence[int], models: Sequence[int]) -> None:
        """Go back to a text that the row had before, the primary's ids of it and the models that took part then."""
        self.models = models
        self.ids[self.primary] = list(primary_ids)
        self._follow(models)
        self.forget_caches()
        self.update(data)

    # -- contexts ----------------------------------------------------------------------------------------------------

    def full(self) -> bool:
        """Whether some model's ids fill its context: nothing more can be forwarded and read."""
        return any(self.total(m) >= self.context_lengths[m] for m in self.models)

    def far_from_full(self, new_bytes: int) -> bool:
        """Whether no context can fill while ``new_bytes`` are added, however they are tokenized."""
        return all(self.total(m) + 4 * new_bytes + 64 < self.context_lengths[m] for m in self.models)

    def full_with(self, primary_total: int, data: bytearray, draft: bytes) -> bool:
        """Whether ``data`` + ``draft`` would fill some context, the primary then holding ``primary_total`` ids."""
        if primary_total >= self.context_lengths[self.primary]:
            return True
        return not self.far_from_full(len(draft)) and any(
            self._left(m, bytes(data) + draft) <= 0 for m in self._following
        )

    def overfull_with(self, data: bytearray, draft: bytes) -> bool:
        """Whether the context of some model that follows could not hold ``data`` + ``draft``."""
        if self.far_from_full(len(draft)):
            return False
        return any(self._left(m, bytes(data) + draft) < 0 for m in self._following if m in self.models)

    def _left(self, m: int, data: bytes) -> int:
        """Positions that model m's context has left behind prompt + ``data``."""
        return self.context_lengths[m] - len(self.prompts[m]) - len(self.spell(m, data))
