"""Hugging Face models as members: ragged forwards over one cache of slots."""
