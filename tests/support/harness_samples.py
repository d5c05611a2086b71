"""What lm-evaluation-harness leaves with --log_samples."""

import json


def lines(file):
    """The samples in the order of their documents."""
    return sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda line: line["doc_id"])


def likelihoods(line):
    """The log-likelihood of each of a sample's requests: of rolling ones it stands alone, else beside "is greedy"."""
    return [float(resp[0][0] if isinstance(resp[0], list) else resp[0]) for resp in line["resps"]]
