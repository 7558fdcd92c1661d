"""What passes over PyTorch networks share: tracing, training, layers, compiling."""
