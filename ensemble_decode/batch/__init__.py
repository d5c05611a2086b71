"""Offline batches from file to file: lines in, lines out, nothing lost when the process is killed."""
