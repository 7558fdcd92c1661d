"""ONNX graphs: read and changed in one way by every room. Files and their checks: `formats/onnx.py`.

`graph` opens a model with onnx_ir, `quantized` looks through QuantizeLinear and DequantizeLinear,
`operators` has the lists of operator types. `protobuf` reads plain facts off the protobuf message; it
does not load onnx_ir.
"""
