"""Models as small as can be, in the place of what a peer makes."""


def onnx_file(path, *operators):
    """An ONNX file with these operators, which nothing can run."""
    from onnx import TensorProto, helper, save

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    nodes = [helper.make_node(operator, ["x"], ["y"]) for operator in operators]
    save(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:])), path)
    return path
