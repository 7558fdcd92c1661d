"""Engines that run, here or in another interpreter: shapes, CUDA graphs, outputs of any size."""
