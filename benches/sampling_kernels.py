"""What the filters of sampling cost: `sample_tokens` with and without them at [32, 262144], one thread.

Run: python benches/sampling_kernels.py. Prints medians in ms of the thread's own time, taken in turn, and their ratio
to unfiltered sampling.
"""

from __future__ import annotations

import statistics
import time

import torch

from ensemble_decode import kernels

ROWS, TOKENS, ROUNDS = 32, 262_144, 5
FILTERS = {
    "none": {},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.95, top_k 50, min_p 0.01": {"top_p": 0.95, "sample_top_k": 50, "min_p": 0.01},
    "temperature 1.5, top_p 0.9": {"temperature": 1.5, "top_p": 0.9},
}


def main() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    shapes = {
        "normal": torch.randn(ROWS, TOKENS, generator=g) * 3,
        "flat": torch.randn(ROWS, TOKENS, generator=g) * 0.1,
        "peaked": torch.randn(ROWS, TOKENS, generator=g).index_fill_(1, torch.tensor([77]), 25.0),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for shape, logits in shapes.items():
            x = logits.to(dtype)
            times: dict[str, list[float]] = {name: [] for name in FILTERS}
            for _ in range(ROUNDS):
                for name, filters in FILTERS.items():
                    fields = {"temperature": 1.0, "seed": 5, "row": list(range(ROWS))} | filters
                    settings = kernels.SampleSettings.make(ROWS, **fields)
                    began = time.thread_time()
                    kernels.sample_tokens(x, None, settings)
                    times[name].append((time.thread_time() - began) * 1e3)
            plain = statistics.median(times["none"])
            for name, taken in times.items():
                median = statistics.median(taken)
                print(f"{str(dtype)[6:]:9} {shape:7} {name:33} {median:8.2f} ms  {median / plain:5.2f}")


if __name__ == "__main__":
    main()
