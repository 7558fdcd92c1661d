"""Accuracy after a build: of model files, by layer, and judged again by another bar."""
