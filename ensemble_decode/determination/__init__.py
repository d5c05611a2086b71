"""Determine-then-ensemble (arXiv 2410.03777): which models are worth combining, and how, before a night of compute is spent on it."""

from .recommend import Recommendation, Rules
from .report import Report
from .run import determine

__all__ = ["Recommendation", "Report", "Rules", "determine"]
