"""Scores of samples. They take tensors and callables, and know nothing of models or training."""
