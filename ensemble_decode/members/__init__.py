"""What an ensemble asks of a model, and who answers."""
