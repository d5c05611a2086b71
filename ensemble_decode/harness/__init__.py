"""The bridge to lm-evaluation-harness: importing this registers its model ``ensemble_decode``.

    import ensemble_decode.harness
    lm_eval.simple_evaluate(model="ensemble_decode", model_args="models=A;B,method=safe", tasks=["..."])

On a command line ``ensemble-decode lm-eval`` is the harness's own ``lm_eval`` with the model registered.
"""

from ensemble_decode.errors import InputError

try:
    # The harness registers its own models only while its registry is empty, so they come first.
    import lm_eval.models  # noqa: F401
except ImportError as error:
    raise InputError(
        "the bridge to lm-evaluation-harness needs lm_eval: pip install 'ensemble-decode[lm-eval]'"
    ) from error

from ensemble_decode.harness.lm import EnsembleLM

__all__ = ["EnsembleLM"]
