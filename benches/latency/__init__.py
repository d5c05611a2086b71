"""The page docs/benchmarks/latency.md: what it measures, and how it is written. ``benches/bench_latency.py`` runs
it."""
