"""Prompts: what a caller may pass, and each model's own ids of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ensemble_decode.errors import InputError
from ensemble_decode.members.per_model import per_model

Chat = Sequence[Mapping[str, Any]]
ChatMode = Literal["template", "plain"]
SystemMode = Literal["error", "merge"]


@dataclass(frozen=True)
class TokenPrompt:
    """A prompt of which some models, or all, get token ids as they are: no tokenizer, no template, no BOS.

    Attributes:
        ids: The ids of model 0; or a mapping from a model's number to its ids.
        text: A string or chat messages, for every model that has no ids. None: the method must use no other model.
    """

    ids: Sequence[int] | Mapping[int, Sequence[int]]
    text: str | Chat | None = None

    def of_model(self, m: int) -> list[int] | None:
        """The ids of model m; None where it has none."""
        given = self.ids if isinstance(self.ids, Mapping) else {0: self.ids}
        return None if m not in given else [int(token) for token in given[m]]


Prompt = str | Chat | TokenPrompt


@dataclass(frozen=True)
class Rendering:
    """How chat messages become text.

    Args:
        chat: ``"template"``: by each model's own chat template. ``"plain"``: their contents, blank lines between.
        system: What becomes of a system message that a template refuses: ``"error"``; or ``"merge"``, it goes in front
            of the first user message.
        add_generation_prompt: Whether the template opens the assistant's answer; None: unless the last message is
            continued.
        continue_final_message: Whether the text ends with the last message as it is, for the models to continue.
        chat_template_kwargs: What the templates get beside the messages: one mapping for all models, or a list with one
            per model.

    Raises:
        InputError: A value is none of those, or both of ``add_generation_prompt`` and ``continue_final_message`` are
            true.
    """

    chat: ChatMode = "template"
    system: SystemMode = "error"
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("chat", self.chat, get_args(ChatMode)),
            ("system", self.system, get_args(SystemMode)),
        ):
            if value not in choices:
                raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        if self.add_generation_prompt and self.continue_final_message:
            raise InputError("add_generation_prompt opens a new message, continue_final_message none: give one of them")

    def template_kwargs(self, m: int, models: int) -> dict[str, Any]:
        """What the template of model m, one of ``models``, gets beside the messages.

        Raises:
            InputError: The list has another length, or something in it is no mapping.
        """
        given = per_model(self.chat_template_kwargs, models, "chat_template_kwargs")[m]
        if given is not None and not isinstance(given, Mapping):
            raise InputError(f"chat_template_kwargs of model {m} must be a mapping, got {given!r}")
        opens = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        own = {"add_generation_prompt": opens, "continue_final_message": self.continue_final_message}
        clash = own.keys() & (given or {}).keys()
        if clash:
            raise InputError(f"chat_template_kwargs has {', '.join(sorted(clash))}, which is an argument of its own")
        return {**own, **(given or {})}


TEMPLATE = Rendering()


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list.

    Raises:
        InputError: A single chat message was passed.
    """
    if isinstance(prompts, (str, TokenPrompt)):
        return [prompts]
    if isinstance(prompts, Mapping):
        raise InputError("a single chat message is no prompt: pass a list of messages, or a string")
    items = list(prompts)
    if items and all(isinstance(item, Mapping) for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def check_prompt_type(prompt: object) -> None:
    """Refuse what is no prompt.

    Args:
        prompt: A string; a list of messages with a string ``role`` and a ``content`` that is a string or a list of text
            parts; or a ``TokenPrompt``.

    Raises:
        InputError: It is none of them, or no text.
    """
    if isinstance(prompt, str):
        _check_text(prompt, "the prompt")
        return
    if isinstance(prompt, TokenPrompt):
        _check_ids(prompt)
        if prompt.text is not None:
            check_prompt_type(prompt.text)
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise InputError(
            "a prompt is a string, a non-empty list of chat messages or a TokenPrompt, got "
            f"{'an empty list' if isinstance(prompt, list) and not prompt else type(prompt).__name__}"
        )
    for i, message in enumerate(prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(
                f"message {i} of the prompt must be a mapping with a string 'role' and 'content', got {message!r}"
            )
        _check_text(_text_of(message, i), f"message {i} of the prompt")


def _check_ids(prompt: TokenPrompt) -> None:
    given = prompt.ids if isinstance(prompt.ids, Mapping) else {0: prompt.ids}
    for m, ids in given.items():
        try:
            wrong: list[Any] = [token for token in ids if int(token) != token or token < 0]
        except (TypeError, ValueError):
            wrong = [ids]
        if wrong:
            raise InputError(f"the token ids of model {m} must be integers, 0 or more; got {wrong[0]!r}")


def _text_of(message: Mapping[str, Any], i: int) -> str:
    """A message's content, of which text parts are joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes) and content:
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise InputError(
                    f"message {i} of the prompt has a part that is no text, {part!r}: only "
                    '{"type": "text", "text": "..."} can be read'
                )
        return "".join(part["text"] for part in content)
    raise InputError(f"message {i} of the prompt must have a string 'content' or text parts, got {content!r}")


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


def _template_ids(
    tokenizer: Any, name: str, messages: Chat, system: SystemMode, kwargs: Mapping[str, Any]
) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{name} has no chat template: pass chat='plain' to send the messages' contents without one, "
            "or a text prompt"
        )

    def apply(chat: Chat) -> list[int]:
        text = tokenizer.apply_chat_template([dict(m) for m in chat], tokenize=False, **kwargs)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    has_system = any(m["role"] == "system" for m in messages)
    try:
        return apply(messages)
    except Exception as error:
        if has_system and system == "merge":
            return _merged(apply, messages, name)
        hint = (
            "; pass system='merge' to put the system message in front of the first user message" if has_system else ""
        )
        raise InputError(f"the chat template of {name} refuses these messages: {error}{hint}") from error


def _merged(apply: Any, messages: Chat, name: str) -> list[int]:
    """The ids of the messages with the system message merged; a template may refuse these, too."""
    try:
        ids: list[int] = apply(merge_system(messages))
    except Exception as error:
        raise InputError(
            f"the chat template of {name} refuses these messages, the system message merged or not: {error}"
        ) from error
    return ids


def prompt_ids(
    tokenizer: Any,
    bos_id: int | None,
    name: str,
    prompt: Prompt,
    rendering: Rendering = TEMPLATE,
    m: int = 0,
    models: int = 1,
    size: int | None = None,
) -> list[int]:
    """One model's ids of a prompt: its own tokenizer, its own chat template, exactly one BOS where it wants one.

    An EOS that the tokenizer appends to every text is left out: the models are to continue the prompt.

    Args:
        tokenizer: The model's.
        bos_id: The id of its BOS; None where it has none.
        name: What errors call the model.
        prompt: A prompt that ``check_prompt_type`` accepts.
        rendering: How chat messages become text.
        m: The model's number.
        models: How many there are.
        size: Ids that the model knows, where ids come from the caller.

    Raises:
        InputError: The model's template refuses the messages, or it has neither ids nor a text.
    """
    if isinstance(prompt, TokenPrompt):
        given = prompt.of_model(m)
        if given is not None:
            if size is not None and max(given, default=0) >= size:
                raise InputError(f"the token ids of {name} must be below {size}, got {max(given)}")
            return given
        if prompt.text is None:
            raise InputError(f"the prompt has no token ids for {name} and no text: give one of them")
        prompt = prompt.text
    if not isinstance(prompt, str):
        messages = [{**message, "content": _text_of(message, i)} for i, message in enumerate(prompt)]
        if rendering.chat == "template":
            kwargs = rendering.template_kwargs(m, models)
            return _one_bos(_template_ids(tokenizer, name, messages, rendering.system, kwargs), bos_id)
        prompt = render_plain(messages)
    ids = list(tokenizer(prompt)["input_ids"])
    empty = list(tokenizer("")["input_ids"])
    eos = tokenizer.eos_token_id
    if ids and empty and eos is not None and empty[-1] == eos and ids[-1] == eos:
        ids.pop()
    return _one_bos(ids, bos_id)


def _one_bos(ids: list[int], bos_id: int | None) -> list[int]:
    while bos_id is not None and len(ids) > 1 and ids[0] == ids[1] == bos_id:
        ids.pop(0)
    return ids
