"""Chats of the harness: one text for its logs, and the messages for every model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_decode.errors import InputError


class Conversation(str):
    """A chat as the primary's template writes it, with its messages.

    The harness passes contexts as text. As this one it reaches the model with everything that the other models'
    templates need; it can be pickled, as the harness's request cache does.

    Attributes:
        messages: The chat.
        opens: Whether the template opens the assistant's answer; otherwise the last message is continued.
    """

    messages: Sequence[Mapping[str, str]]
    opens: bool

    @classmethod
    def of(cls, text: str, messages: Sequence[Mapping[str, str]], opens: bool) -> Conversation:
        """The chat whose rendering by the primary's template is ``text``."""
        made = cls(text)
        made.messages, made.opens = [dict(message) for message in messages], opens
        return made


def rendered(tokenizer: Any, name: str, messages: Sequence[Mapping[str, str]], opens: bool) -> str:
    """A chat by one model's own template.

    Args:
        tokenizer: The model's.
        name: What errors call the model.
        messages: The chat.
        opens: As of ``Conversation``.

    Raises:
        InputError: It has no template, or the template refuses the messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"{name} has no chat template, which --apply_chat_template needs of every model")
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=opens,
            continue_final_message=not opens,
        )
    except Exception as error:  # whatever a template raises
        raise InputError(f"the chat template of {name} refuses these messages: {error}") from error
    return text


def conversation_ids(tokenizer: Any, name: str, conversation: Conversation) -> list[int]:
    """One model's ids of a chat. The template writes the special tokens, BOS among them.

    Raises:
        InputError: As ``rendered``.
    """
    text = rendered(tokenizer, name, conversation.messages, conversation.opens)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
