"""What one model's tokenizer means in bytes, read from its JSON alone."""

import json
import unicodedata

from tokenizers import Tokenizer

END = None  # the candidate that ends a text; every other candidate is a bytes object


def printable_alphabet() -> dict[str, int]:
    """How byte-level BPE writes bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}


def _types(node) -> set[str]:
    """Every "type" in a part of a tokenizer's JSON."""
    if isinstance(node, dict):
        return (
            {node["type"]} | set().union(*map(_types, node.values()))
            if "type" in node
            else set().union(set(), *map(_types, node.values()))
        )
    if isinstance(node, list):
        return set().union(set(), *map(_types, node))
    return set()


def _without_dummy_prefix(node):
    """The same normalizer or pre-tokenizer, but adding no space in front."""
    if isinstance(node, list):
        kept = [_without_dummy_prefix(item) for item in node]
        return [item for item in kept if item is not None]
    if isinstance(node, dict):
        if node.get("type") == "Prepend":
            return None
        new = {key: _without_dummy_prefix(value) for key, value in node.items()}
        if "prepend_scheme" in new:
            new["prepend_scheme"] = "never"
        if "add_prefix_space" in new:
            new["add_prefix_space"] = False
        return new
    return node


class Vocab:
    """Bytes of every id of one model, and its tokenization of bytes, `T_m`."""

    def __init__(self, tokenizer, size: int | None = None, eos_ids=()):
        self.tokenizer = tokenizer
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        known = {index: piece for piece, index in tokenizer.get_vocab().items()}
        self.size = size or max(known) + 1
        added = {token["id"]: token for token in description["added_tokens"]}
        byte_level = "ByteLevel" in _types(description["pre_tokenizer"]) | _types(description["decoder"])
        alphabet = printable_alphabet()

        def bytes_of(index: int) -> bytes:
            if index not in known or (index in added and added[index]["special"]):
                return b""
            piece = known[index]
            if byte_level:
                if index in added:
                    return piece.encode()
                return bytes(alphabet[char] for char in piece)
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes([int(piece[3:5], 16)])
            return piece.replace("▁", " ").encode()

        self.token_bytes = [bytes_of(index) for index in range(self.size)]
        own_eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.eos_ids = sorted({*own_eos, *eos_ids})
        for index in self.eos_ids:
            self.token_bytes[index] = b""
        self.allowed = [i for i in range(self.size) if self.token_bytes[i] or i in self.eos_ids]

        for part in ("normalizer", "pre_tokenizer"):
            description[part] = _without_dummy_prefix(description[part])
        description["post_processor"] = None
        description["truncation"] = description["padding"] = None
        for token in description["added_tokens"]:
            token["lstrip"] = token["rstrip"] = False  # would swallow bytes that the token does not hold
        self._plain = Tokenizer.from_str(json.dumps(description))
        self._plain.encode_special_tokens = True  # "</s>" in a text is text

        self._ids_of: dict[bytes, list[int]] = {}
        for index, data in enumerate(self.token_bytes):
            if data:
                self._ids_of.setdefault(data, []).append(index)
        self._exact_ids: dict[bytes, int] | None = None
        self._longest = max(map(len, self._ids_of))

        self.bos_id = tokenizer.bos_token_id
        start = tokenizer("a").input_ids
        self.wants_bos = self.bos_id is not None and bool(start) and start[0] == self.bos_id

    def bytes_of(self, ids) -> bytes:
        return b"".join(self.token_bytes[i] for i in ids)

    def exact(self, data: bytes) -> int | None:
        """The id whose bytes are `data`; of twins, the one that the tokenizer itself writes."""
        ids = self._ids_of.get(data, [])
        if len(ids) < 2:
            return ids[0] if ids else None
        try:
            own = self._plain.encode(data.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            own = []
        return own[0] if len(own) == 1 and own[0] in ids else ids[0]

    def exact_ids(self) -> dict[bytes, int]:
        """The exact id of every byte string that has one."""
        if self._exact_ids is None:
            self._exact_ids = {
                data: ids[0] if len(ids) == 1 else self.exact(data) for data, ids in self._ids_of.items()
            }
        return self._exact_ids

    def first_piece(self, data: bytes) -> int:
        exact = self.exact(data)
        return self.encode(data)[0] if exact is None else exact

    def encode(self, data: bytes) -> list[int]:
        """`T_m(data)`: the tokenizer's own pieces of every valid run, single bytes elsewhere."""
        ids: list[int] = []
        for valid, part in _runs(data):
            ids += self._encode_text(part) if valid else [self.exact(bytes([b])) for b in part]
        assert self.bytes_of(ids) == data
        return ids

    def _encode_text(self, data: bytes) -> list[int]:
        ids = self._plain.encode(data.decode(), add_special_tokens=False).ids
        if self.bytes_of(ids) == data:
            return ids
        # Only the characters (with their marks) that do not come back alone are spelled by longest match.
        ids, run = [], b""
        for cluster in [*_clusters(data.decode()), b""]:
            if cluster and self.bytes_of(self._plain.encode(cluster.decode(), add_special_tokens=False).ids) == cluster:
                run += cluster
                continue
            own = self._plain.encode(run.decode(), add_special_tokens=False).ids
            ids += own if self.bytes_of(own) == run else self._longest_match(run)
            ids += self._longest_match(cluster)
            run = b""
        return ids

    def _longest_match(self, data: bytes) -> list[int]:
        ids = []
        at = 0
        while at < len(data):
            length = next(
                n for n in range(self._longest, 0, -1) if len(data) - at >= n and data[at : at + n] in self._ids_of
            )
            ids.append(self.exact(data[at : at + length]))
            at += length
        return ids

    def prompt_ids(self, prompt) -> list[int]:
        """A prompt's ids: text by the tokenizer, with one BOS where the model wants one; messages by its chat
        template."""
        if not isinstance(prompt, str):
            text = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        ids = list(self.tokenizer(prompt, add_special_tokens=False).input_ids)
        if self.wants_bos and (not ids or ids[0] != self.bos_id):
            ids = [self.bos_id, *ids]
        return ids


def _clusters(text: str) -> list[bytes]:
    """Each character with the marks and conjoining jamo behind it."""
    out: list[str] = []
    for char in text:
        if out and (unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"):
            out[-1] += char
        else:
            out.append(char)
    return [cluster.encode() for cluster in out]


def _runs(data: bytes):
    """Maximal valid UTF-8 runs and, between them, the invalid bytes as Python's decoder reports them."""
    while data:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield True, data[: error.start]
            yield False, data[error.start : error.end]
            data = data[error.end :]
        else:
            yield True, data
            return
