"""Models as files and as code: sources, formats, ONNX graphs, TensorRT engines."""
