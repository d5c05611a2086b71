"""SAFE (arXiv 2510.15346): the primary drafts, the others verify, the ensemble acts where they disagree."""
