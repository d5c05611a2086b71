"""Write a third candidate: demo:smollm2 with some of its layers left out, a weaker model with the same tokenizer.

python examples/determine/make_third.py FOLDER [LAYERS LEFT OUT]
"""

import sys

import torch

from ensemble_decode.members.transformers.loading import load


def main(folder: str, dropped: int) -> None:
    loaded = load("demo:smollm2", device="cpu", dtype="bfloat16")
    layers, config = loaded.model.model.layers, loaded.model.config
    middle = (len(layers) - dropped) // 2
    kept = [layer for i, layer in enumerate(layers) if not middle <= i < middle + dropped]
    for i, layer in enumerate(kept):
        layer.self_attn.layer_idx = i
    loaded.model.model.layers = torch.nn.ModuleList(kept)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: len(kept)]
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    print(f"{folder}: {len(kept)} of {len(layers)} layers")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4)
