"""Arguments that are one value for all models, or one per model; weights among them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ensemble_decode.errors import InputError


def per_model(value: Any, count: int, name: str) -> list[Any]:
    """One value per model.

    Args:
        value: One value for all models, or a list with one per model. A list of one value counts for all models.
        count: The number of models.
        name: What errors call the argument.

    Returns:
        ``count`` values.

    Raises:
        InputError: The list has another length.
    """
    if isinstance(value, (str, bytes, Mapping, os.PathLike)) or not hasattr(value, "__len__"):
        return [value] * count
    values = list(value)
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise InputError(f"{name}: {len(values)} values for {count} models; give one for all or one per model")
    return values


def check_weights(weight: Any, models: int) -> list[float]:
    """Weights that sum to 1.

    Args:
        weight: One value for all models, or one per model; None: all equal.
        models: The number of models.

    Raises:
        InputError: A weight is negative, infinite or no number, or all are 0.
    """
    values = []
    for m, given in enumerate(per_model(1.0 if weight is None else weight, models, "weight")):
        value = float(given) if isinstance(given, Real) and not isinstance(given, bool) else math.nan
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"weight: the weight of model {m} must be a finite number, 0 or more; got {given!r}")
        values.append(value)
    total = sum(values)
    if total == 0:
        raise InputError("weight: at least one weight must be above 0, all are 0")
    return [value / total for value in values]
