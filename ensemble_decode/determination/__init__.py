"""Determine-then-ensemble (arXiv 2410.03777): which models are worth combining, and how, before a night of compute is
spent on it."""

from ensemble_decode.determination.recommend import Recommendation, Rules
from ensemble_decode.determination.report import Report
from ensemble_decode.determination.run import determine

__all__ = ["Recommendation", "Report", "Rules", "determine"]
