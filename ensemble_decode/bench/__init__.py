"""Measuring what ensembling costs per token, and predicting it: ``ensemble-decode bench`` (docs/benchmarks/).

``cost`` (a cost model that needs neither torch nor a model) is meant to be imported by others; the rest serves the
command.
"""
