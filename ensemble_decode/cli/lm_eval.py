"""``ensemble-decode lm-eval``: lm-evaluation-harness's own command line, which knows the model ``ensemble_decode``."""

import sys

import typer


def lm_eval(context: typer.Context) -> None:
    """Run lm_eval with --model ensemble_decode known to it; all arguments are lm_eval's own."""
    from lm_eval.__main__ import cli_evaluate

    import ensemble_decode.harness  # noqa: F401

    sys.argv = ["lm_eval", *context.args]
    cli_evaluate()
