"""Any number of prompts from Python: results as rows end, settings per row, memory within a limit."""

from collections.abc import Iterator

import ensemble_decode as ed


def requests() -> Iterator[ed.BatchRequest]:
    """Read only as there is room: this could as well come from a database."""
    for number in range(40):
        yield ed.BatchRequest(
            f"Question: what is {number} + {number}?\nAnswer:",
            max_new_tokens=4 if number % 4 else 24,
            stop="\n",
            method=ed.SAFE(draft_length=3) if number % 2 else None,
            tag=number,
        )


def main() -> None:
    ensemble = ed.Ensemble.load(["demo:smollm2", "demo:gemma3"])
    run = ensemble.generate_batch(requests(), batch_size=8, memory="1GiB", order="finished")
    for result in run:
        print(result.request.tag, repr(result.completion.text), result.error_kind or result.completion.finish_reason)
    counts = run.counts
    print(
        f"{counts.rows} rows, {counts.tokens / counts.seconds:.1f} tokens/s, "
        f"{counts.peak_cache_bytes / 2**20:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
