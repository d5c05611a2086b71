"""Slow and obvious decoders to compare the package against: no cache, no batch, everything afresh at every step.

Nothing here imports `ensemble_decode`: token bytes, tokenization, fusion and stopping are written a second time from
the published rules (`docs/methods.md`), in plain Python over dictionaries of bytes and float64.
"""
