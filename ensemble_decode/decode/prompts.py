"""Prompts: what a caller may pass, and each model's own ids of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ensemble_decode.errors import InputError

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Chat
ChatMode = Literal["template", "plain"]
SystemMode = Literal["error", "merge"]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """Normalise to a list of prompts; the second value says whether a single one was passed."""
    if isinstance(prompts, str):
        return [prompts], True
    if isinstance(prompts, Mapping):
        raise InputError("a single chat message is no prompt: pass a list of messages, or a string")
    items = list(prompts)
    if items and all(isinstance(item, Mapping) for item in items):
        return [items], True  # type: ignore[list-item]
    return items, False  # type: ignore[return-value]


def check_prompt_type(prompt: object) -> None:
    """A string, or a list of messages with string ``role`` and ``content``."""
    if isinstance(prompt, str):
        _check_text(prompt, "the prompt")
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise InputError(f"a prompt is a string or a non-empty list of chat messages, got {type(prompt).__name__}")
    for i, message in enumerate(prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(
                f"message {i} of the prompt must be a mapping with a string 'role' and 'content', got {message!r}"
            )
        if not isinstance(message.get("content"), str):
            raise InputError(f"message {i} of the prompt must have a string 'content', got {message.get('content')!r}")
        _check_text(message["content"], f"message {i} of the prompt")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not text: it has a lone surrogate at character {error.start}") from None


def merge_system(messages: Chat) -> list[dict[str, Any]]:
    """Move the system messages in front of the first user message, for templates that know no such role."""
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    rest = [dict(m) for m in messages if m["role"] != "system"]
    if system:
        for message in rest:
            if message["role"] == "user":
                message["content"] = f"{system}\n\n{message['content']}"
                return rest
        rest.insert(0, {"role": "user", "content": system})
    return rest


def render_plain(messages: Chat) -> str:
    """The messages without any template: their contents, blank lines between."""
    return "\n\n".join(m["content"] for m in messages)


def _has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def _template_ids(tokenizer: Any, name: str, messages: Chat, system: SystemMode) -> list[int]:
    if not _has_template(tokenizer):
        raise InputError(
            f"{name} has no chat template: pass chat='plain' to send the messages' contents without one, or a text prompt"
        )

    def apply(chat: Sequence[Mapping[str, Any]]) -> list[int]:
        text = tokenizer.apply_chat_template([dict(m) for m in chat], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    has_system = any(m["role"] == "system" for m in messages)
    try:
        return apply(messages)
    except Exception as error:
        if has_system and system == "merge":
            return apply(merge_system(messages))
        hint = (
            "; pass system='merge' to put the system message in front of the first user message" if has_system else ""
        )
        raise InputError(f"the chat template of {name} refuses these messages: {error}{hint}") from error


def prompt_ids(
    tokenizer: Any,
    bos_id: int | None,
    name: str,
    prompt: Prompt,
    chat: ChatMode = "template",
    system: SystemMode = "error",
) -> list[int]:
    """One model's ids of a prompt: its own tokenizer, its own chat template, exactly one BOS where it wants one.

    An EOS that the tokenizer appends to every text is left out: the models are to continue the prompt.
    """
    if not isinstance(prompt, str) and chat == "template":
        ids = _template_ids(tokenizer, name, prompt, system)
    else:
        text = prompt if isinstance(prompt, str) else render_plain(prompt)
        ids = list(tokenizer(text)["input_ids"])
        empty = list(tokenizer("")["input_ids"])
        eos = tokenizer.eos_token_id
        if ids and empty and eos is not None and empty[-1] == eos and ids[-1] == eos:
            ids.pop()
    while bos_id is not None and len(ids) > 1 and ids[0] == ids[1] == bos_id:
        ids.pop(0)
    return ids
