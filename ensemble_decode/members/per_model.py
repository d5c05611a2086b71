"""Arguments that are one value for all models, or one per model."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
