"""Fused operators over batched logits: no model, no tokenizer, tensors in, tensors out."""
