"""The models of an ensemble inside a Ray Data pipeline: one actor per set of devices, loaded once.

``ensemble-decode batch --engine ray`` does this with a manifest around it; here the rows go wherever the pipeline takes
them.
"""

import json
from pathlib import Path

import numpy as np
import pandas
import ray

from ensemble_decode.batch.job import Job
from ensemble_decode.batch.ray import EnsembleWorker


def main() -> None:
    prompts = [{"prompt": f"{number} and {number} make"} for number in range(32)]
    lines = {"number": np.arange(1, len(prompts) + 1), "raw": [json.dumps(line).encode() for line in prompts]}
    # input and output are the command's affair: a worker reads neither
    job = Job(Path("in.jsonl"), Path("out.jsonl"), ["demo:smollm2", "demo:gemma3"], max_new_tokens=8, batch_size=8)
    ray.init()
    answers = ray.data.from_pandas(pandas.DataFrame(lines)).map_batches(
        EnsembleWorker,
        fn_constructor_kwargs={"job": job, "seed": 0},
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    for row in answers.iter_rows():
        print(json.loads(row["result"])["text"])


if __name__ == "__main__":
    main()
