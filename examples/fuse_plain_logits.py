"""Fuse logits tensors of two models with different vocabularies: no decoder, no model, only the operators.

What an inference stack does that has its own models, caches and loop. Run: python examples/fuse_plain_logits.py
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import ensemble_decode as ed
from ensemble_decode import kernels


def tokenizer(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a few merges, in place of a real one."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges), "<end>"]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def main() -> None:
    one = tokenizer([("t", "h"), ("th", "e")])
    two = tokenizer([("h", "e"), ("t", "he"), ("Ġ", "the")])
    # Once per pair of tokenizers; cached on disk for real ones.
    vocab = ed.AlignedVocab.build([one, two], names=["one", "two"], cache_dir=None)

    torch.manual_seed(0)
    batch = 4
    logits = [torch.randn(batch, model.size, dtype=torch.bfloat16) * 3 for model in vocab.models]

    settings = kernels.FuseSettings.make(
        batch,
        len(logits),
        logits[0].device,
        top_k=8,
        weights=[0.6, 0.4],
        sharpen=["none", "prefix", "prefix", "none"],  # settings may differ between the rows of a batch
        gate="js",
        gate_threshold=0.05,
    )
    step = kernels.fuse_step(logits, vocab.tensors(logits[0].device), settings, k=8)
    for row in range(batch):
        cid = int(step.cid[row])
        shown = "END" if cid == vocab.size - 1 else repr(vocab.bytes_of(cid))
        print(
            f"row {row}: {shown:10} primary id {int(step.primary_id[row]):4}  E max {float(step.max_prob[row]):.3f}  "
            f"JS {float(step.js[row]):.3f} nats  {'fused' if bool(step.ensembled[row]) else 'the primary alone'}"
        )


if __name__ == "__main__":
    main()
