"""What decoding costs, from bytes and operations: time per token, and what fits into memory."""
