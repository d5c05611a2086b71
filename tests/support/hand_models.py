"""Models written out by hand: a few tokens, and a table from the text so far to the probabilities of what comes
next."""

import numpy as np

from support.oracle.vocab import END


class HandVocab:
    """Tokens by longest match; the last id is EOS."""

    def __init__(self, tokens: list[str], eos: int = 1):
        self.token_bytes = [token.encode() for token in tokens] + [b""] * eos
        self.eos_ids = list(range(len(tokens), len(tokens) + eos))
        self.size = len(self.token_bytes)

    def exact(self, data: bytes) -> int | None:
        return self.token_bytes.index(data) if data in self.token_bytes else None

    def exact_ids(self) -> dict[bytes, int]:
        return {data: i for i, data in enumerate(self.token_bytes) if data}

    def encode(self, data: bytes) -> list[int]:
        ids = []
        while data:
            piece = max((t for t in self.token_bytes if t and data.startswith(t)), key=len)
            ids.append(self.token_bytes.index(piece))
            data = data[len(piece) :]
        return ids

    def first_piece(self, data: bytes) -> int:
        return self.encode(data)[0]

    def bytes_of(self, ids) -> bytes:
        return b"".join(self.token_bytes[i] for i in ids)

    def prompt_ids(self, prompt: str) -> list[int]:
        return self.encode(prompt.encode())


class HandModel:
    """`table[text]`, or `table(text)`, holds the probabilities after that text: by token, or END; all others are 0."""

    def __init__(self, tokens: list[str], table, eos: int = 1, context_length: int = 100):
        self.vocab = HandVocab(tokens, eos)
        self.table = table
        self.context_length = context_length

    def allowed_bytes(self) -> dict[bytes, int]:
        return self.vocab.exact_ids()

    def read(self, ids, start) -> None:
        """Nothing to run ahead of."""

    def logits(self, ids: list[int]) -> np.ndarray:
        probs = np.zeros(self.vocab.size)
        text = self.vocab.bytes_of(ids).decode()
        for token, p in (self.table(text) if callable(self.table) else self.table[text]).items():
            if token is END:
                probs[self.vocab.eos_ids] = p / len(self.vocab.eos_ids)
            else:
                probs[self.vocab.exact(token.encode())] = p
        with np.errstate(divide="ignore"):
            return np.log(probs)
