"""What passes over ONNX models share."""
