"""The errors of the package. Each message names what was wrong, with which model or row, and what would be right."""


class EnsembleError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(EnsembleError, ValueError):
    """An argument, prompt or setting that cannot be used as given."""


class ModelError(EnsembleError):
    """A model that cannot be found, loaded or used here."""


class TokenizerError(ModelError):
    """A tokenizer of an unknown family, or one that cannot spell every byte."""


class CacheError(EnsembleError):
    """A use of the KV cache that would leave it wrong: a rollback past its length, a slot that is not held, no memory
    left."""


class CacheLimitError(CacheError):
    """More KV cache asked for than a limit allows. The cache is as it was."""


class ContextError(InputError):
    """A prompt or request that does not fit a model's context length."""
