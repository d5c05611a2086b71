"""Where a drafted segment is cut, so that the next one starts at a word (SpecFuse, arXiv 2412.07380, section 3.1)."""

from __future__ import annotations

import codecs


def trim_word(draft: bytes) -> bytes:
    """A draft without an incomplete UTF-8 tail and without a last word that may be unfinished; whole where nothing
    would be left.

    The last word goes, with the whitespace before it, where its last character is alphanumeric and something other than
    whitespace stands before that whitespace.
    """
    text, used = codecs.utf_8_decode(draft, "surrogateescape", False)
    word = len(text)
    while word and not text[word - 1].isspace():
        word -= 1
    gap = word
    while gap and text[gap - 1].isspace():
        gap -= 1
    if gap and word < len(text) and text[-1].isalnum():
        return text[:gap].encode("utf-8", "surrogateescape")
    return draft[:used] or draft
