"""A hand-written loop over two Hugging Face models, with only the vocabulary and the fused step from this package.

Each model keeps its own transformers cache; the second one is rolled back with ``crop`` where its tokenization of the
text changes. Run: python examples/two_model_loop.py (fetches the demo models on first use).
"""

import torch
from transformers import DynamicCache

import ensemble_decode as ed
from ensemble_decode import kernels
from ensemble_decode.members.transformers.body import cache_argument
from ensemble_decode.members.transformers.loading import load
from ensemble_decode.vocab.common_prefix import common_prefix
from ensemble_decode.vocab.incremental import IncrementalTokens


@torch.inference_mode()
def main(prompt: str = "The three primary colours are", steps: int = 16) -> str:
    loaded = [load("demo:smollm2"), load("demo:gemma3")]
    vocab = ed.AlignedVocab.build(
        [entry.tokenizer for entry in loaded],
        sizes=[entry.model.get_output_embeddings().weight.shape[0] for entry in loaded],
        eos_ids=[entry.eos_ids for entry in loaded],
        names=[entry.name for entry in loaded],
    )
    prompts = [entry.tokenizer(prompt)["input_ids"] for entry in loaded]
    caches = [DynamicCache(), DynamicCache()]
    keywords = [
        cache_argument(entry.model, entry.name) for entry in loaded
    ]  # its name depends on the release of transformers
    held: list[list[int]] = [[], []]  # the ids that each cache holds
    generated: list[int] = []  # the primary's own ids
    follower = IncrementalTokens(vocab.models[1])  # the second model reads the same bytes in its own tokens
    data = b""

    tables, settings = vocab.tensors(), kernels.FuseSettings.make(1, len(loaded), "cpu", top_k=10)
    for _ in range(steps):
        logits = []
        for m, entry in enumerate(loaded):
            wanted = prompts[m] + (generated if m == 0 else follower.ids)
            keep = min(common_prefix(held[m], wanted), len(wanted) - 1)
            if keep < len(held[m]):
                caches[m].crop(keep - len(held[m]))
            out = entry.model(torch.tensor([wanted[keep:]]), use_cache=True, **{keywords[m]: caches[m]})
            held[m] = wanted
            logits.append(out.logits[:, -1])
        step = kernels.fuse_step(logits, tables, settings, k=10)
        if int(step.cid) == vocab.size - 1:
            break
        generated.append(int(step.primary_id))
        data += vocab.models[0].token_bytes[generated[-1]]
        follower.update(data)

    text = data.decode("utf-8", "replace")
    print(prompt + text)
    return text


if __name__ == "__main__":
    main()
