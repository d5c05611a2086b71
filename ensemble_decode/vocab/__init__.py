"""Vocabularies as bytes: what every token id spells, how text becomes ids, and the candidates that models share."""
