"""Where the encoding of a longer text may start anew, for each way of tokenizing (``docs/bytes.md`` has the
argument)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ensemble_decode.vocab.encoders import RustEncoder, TextEncoder, TiktokenEncoder
from ensemble_decode.vocab.pretokens import Reach, reach_of
from ensemble_decode.vocab.token_bytes import TokenTable, leaves

_BYTE_PIECE_TEXT = 6  # characters of "<0xHH>"


@dataclass(frozen=True)
class Restart:
    """The rule of one tokenizer.

    Attributes:
        margin: Bytes before the change that an added token could still claim.
        reach: Restart at a pre-token that is final by this bound; None for byte pair encoding without pre-tokens, which
            restarts anywhere and is checked by the ids it shares with the stored ones.
    """

    margin: int
    reach: Reach | None

    @property
    def pairwise(self) -> bool:
        """Whether a restart is checked by the ids that it shares with the stored ones."""
        return self.reach is None


def restart_rule(encoder: TextEncoder, table: TokenTable) -> Restart | None:
    """The rule for a tokenizer.

    Args:
        encoder: How it encodes generated text.
        table: What was read from it.

    Returns:
        The rule, or None where only encoding everything is sure to be right.
    """
    margin = 4 + max([_BYTE_PIECE_TEXT, *(len(content.encode()) for content in table.added.values())])
    if isinstance(encoder, TiktokenEncoder):
        stage = {"type": "Split", "pattern": {"Regex": encoder.pattern}, "behavior": "Isolated", "invert": False}
        reach = reach_of([stage])
        return None if reach is None else Restart(margin, reach)
    if not isinstance(encoder, RustEncoder) or encoder.has_single_word:
        return None
    if not all(_is_local(part, table.marker) for part in leaves(encoder.normalizer)):
        return None
    stages = list(leaves(encoder.pre_tokenizer))
    if any(stage.get("split") or stage.get("use_regex") or "Regex" in stage.get("pattern", ()) for stage in stages):
        reach = reach_of(stages)
        return None if reach is None else Restart(margin, reach)
    whole = all(_does_nothing(stage, table.marker) for stage in stages)
    if whole and encoder.model == "BPE" and not encoder.ignores_merges:
        return Restart(margin, None)
    return None


def _is_local(part: dict[str, Any], marker: str) -> bool:
    """Whether a normalizer changes each cluster of characters by itself."""
    space = part["type"] == "Replace" and part["pattern"] == {"String": " "} and part["content"] == marker
    return space or part["type"] == "NFC"


def _does_nothing(stage: dict[str, Any], marker: str) -> bool:
    """Whether a pre-tokenizer stage never splits."""
    if stage["type"] == "Split":  # Gemma's: the normalizer has replaced every space before it looks for one
        return bool(marker) and stage["pattern"] == {"String": " "}
    return stage["type"] in ("ByteLevel", "Metaspace")
