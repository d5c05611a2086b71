"""The loop: an engine computes, a scheduler decides which rows run, a row keeps what was written."""
