"""Layers of networks and engines, as each version describes them."""

import json

from optcli.models.engines import inspection


def layer(name, kind, inputs, precision="fp32"):
    return {
        "name": name,
        "type": kind,
        "inputs": inputs,
        "outputs": [f"{name}_out"],
        "precision": precision,
    }


QUANTIZED = {
    "layers": [
        layer("q", "QUANTIZE", ["image"], "int8"),
        layer("dq", "DEQUANTIZE", ["q_out"]),
        layer("wdq", "DEQUANTIZE", ["weight"]),
        layer("moved", "SHUFFLE", ["wdq_out"]),
        layer("conv1", "CONVOLUTION", ["dq_out", "moved_out"]),
        layer("relu", "ACTIVATION", ["conv1_out"]),
        layer("conv2", "CONVOLUTION", ["relu_out"]),
    ]
}
# As TensorRT 8 and 10 write it with detailed verbosity, shortened; and as 11 does.
OLD = {
    "Layers": [
        {
            "Name": "Reformatting CopyNode for Input Tensor 0 to conv1 + relu",
            "LayerType": "Reformat",
            "Inputs": [{"Name": "image", "Format/Datatype": "Row major linear FP32"}],
            "TacticValue": "0x00000000000003e8",
        },
        {
            "Name": "conv1 + relu",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {
                    "Name": "image",
                    "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format",
                }
            ],
            "Weights": {"Type": "Int8", "Count": 432},
            "TacticName": "sm90_xmma_fprop_int8",
        },
        {
            "Name": "conv2",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "relu_out", "Format/Datatype": "Channel major FP16 format"}],
            "TacticName": "sm90_xmma_fprop_f16",
        },
    ],
    "Bindings": ["image"],
}
NEW = {
    "Layers": [
        {
            "Name": "__myl_fused",
            "LayerType": "kgen",
            "Inputs": [{"Name": "image", "Datatype": "Half"}],
            "Metadata": "[ONNX Layer: conv1]\u001e[ONNX Layer: relu]",
            "TacticName": "",
            "TacticValue": "0x1",
        }
    ],
    "I/O Tensors": [{"Name": "image"}],
}


def test_names_may_hold_control_characters():
    """TensorRT 8.6 writes what separates the names of merged layers as it is."""
    merged = "[ONNX Layer: conv1]\x1e[ONNX Layer: relu1]"
    (layer,) = inspection.described(f'{{"Layers": [{{"Metadata": "{merged}"}}]}}')["layers"]
    assert layer["metadata"] == merged


def test_layers_of_an_engine_with_precision_and_tactic():
    found = inspection.described(json.dumps(OLD))
    assert found["detailed"]
    assert found["reformats"] == 1
    assert found["precisions"] == {"fp16": 1, "fp32": 1, "int8": 1}
    assert [each["tactic"] for each in found["layers"]][1:] == [
        "sm90_xmma_fprop_int8",
        "sm90_xmma_fprop_f16",
    ]


def test_names_alone_are_no_detail():
    found = inspection.described(json.dumps({"Layers": ["conv1", "Reformatting CopyNode for x"]}))
    assert not found["detailed"]
    assert found["reformats"] == 1
    assert found["precisions"] == {}


def test_what_was_asked_for_is_counted_in_the_engine():
    found = inspection.expectation("int8", QUANTIZED, inspection.described(json.dumps(OLD)))
    assert (found["by"], found["matching"], found["total"]) == ("engine", 1, 2)
    assert found["text"] == (
        "you asked for INT8; 1 of 2 convolutions run in it, the others in fp16, because no "
        "QuantizeLinear and DequantizeLinear stand before 1 of them (conv2)"
    )


def test_fused_layers_are_found_by_their_metadata():
    network = {"layers": [layer("conv1", "CONVOLUTION", ["image"])]}
    found = inspection.expectation("fp16", network, inspection.described(json.dumps(NEW)))
    assert found["text"] == "you asked for FP16; 1 of 1 convolutions run in it"


def test_one_name_within_another_is_not_taken_for_it():
    network = {"layers": [layer("conv", "CONVOLUTION", ["image"])]}
    found = inspection.expectation("fp16", network, inspection.described(json.dumps(NEW)))
    assert found["matching"] == 0
    assert found["others"] == {"unknown": 1}
    assert found["text"] == (
        "you asked for FP16; 0 of 1 convolutions run in it; the inspector names no precision of 1 "
        "(conv)"
    )


def test_without_a_gpu_the_network_promises_and_that_is_said():
    found = inspection.expectation("int8", QUANTIZED, None)
    assert (found["by"], found["matching"], found["total"]) == ("network", 1, 2)
    assert "can run in it (by the parsed network, without a GPU)" in found["text"]
    both = [layer("mm", "MATRIX_MULTIPLY", ["a", "b"], "fp16"), *QUANTIZED["layers"]]
    found = inspection.expectation("fp16", {"layers": both}, None)
    assert found["kind"] == "convolutions and matrix products"
    assert "because the model computes them so" in found["text"]


def test_tf32_is_how_fp32_is_multiplied():
    network = {"layers": [layer("conv1", "CONVOLUTION", ["image"])]}
    assert inspection.expectation("tf32", network, None)["matching"] == 1
