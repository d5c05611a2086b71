"""What several commands share: loading with a spinner, and names for what is shown."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from ensemble_decode.ensemble import Ensemble
    from ensemble_decode.outputs import Delta


def load_ensemble(specs: Sequence[str], console: Console, **options: Any) -> "Ensemble":
    """``Ensemble.load`` under a spinner on ``console``; demo models are fetched first, with their own progress bar."""
    from ensemble_decode.members import sources as models

    for spec in specs:
        parsed = models.parse_spec(spec)
        if parsed.kind == "demo":
            models.fetch_demo(parsed.location, console)
    with console.status("Loading models (a GGUF file is converted on first use, which takes about a minute)"):
        from ensemble_decode.ensemble import Ensemble
        from ensemble_decode.members.transformers.remarks import quiet_libraries

        quiet_libraries()
        return Ensemble.load(list(specs), **options)


def writer(console: Console) -> "Callable[[Delta], None]":
    """A receiver of deltas that writes their text to ``console`` at once, as it is: no markup, no wrapping."""

    def write(delta: "Delta") -> None:
        console.file.write(delta.text)
        console.file.flush()

    return write
