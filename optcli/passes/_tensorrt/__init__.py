"""What the passes that build TensorRT engines share."""
