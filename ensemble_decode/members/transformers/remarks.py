"""What transformers says on the terminal while it loads."""

from __future__ import annotations


def quiet_libraries() -> None:
    """No progress bars and no remarks of transformers on the terminal, for callers that show their own progress."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
