"""What TensorRT says, and what it means: the texts as its versions write them."""

import types

import pytest

from optcli.models.engines import messages
from optcli.models.engines.messages import LogLine

SAID = [
    (
        "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed. Trying to load an "
        "engine created with incompatible serialization version (0 != 1)",
        "this is no engine of this product",
    ),
    (
        "magicTagRead == kMAGIC_TAG failed. Magic tag does not match",
        "this is no engine of this product",
    ),
    ("Serialization assertion plan.header.size == blobSize failed", "the engine file is truncated"),
    (
        "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed. Version tag does not "
        "match. Note: Current Version: 237, Serialized Engine Version: 239",
        "serialization version 239, here 237",
    ),
    (
        "The engine plan file is not compatible with this version of TensorRT, expecting library "
        "version 10.16.1.11 got 8.6.0.12, please rebuild.",
        "TensorRT 8.6.0.12 built this engine, and TensorRT 10.16.1.11 is here",
    ),
    (
        "The engine plan file is generated on an incompatible device, expecting compute 8.6 got "
        "compute 7.5, please rebuild.",
        "built for compute capability 7.5, and the GPU here has 8.6",
    ),
    ("CUDA initialization failure with error: 35", "CUDA error 35: the driver is missing"),
    (
        "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream "
        "(cudaError 35: x))",
        "CUDA error 35",
    ),
    (
        "Network has dynamic or shape inputs, but no optimization profile has been defined.",
        "no optimization profile says how far",
    ),
    (
        "Invalid optimization profiles for input tensors x, please ensure that the optimization "
        "profiles satisfy MIN<=OPT<=MAX.",
        "an optimization profile of x is not min <= opt <= max",
    ),
    (
        "Dimension mismatch for tensor x and profile 0. At dimension axis 1, profile has min=5, opt=5, "
        "max=5 but tensor has 4.",
        "fixes dimension 1 of x to 4, and profile 0 says 5",
    ),
    (
        "MODEL_DESERIALIZE_FAILED: Assertion failed: model->ParseFromCodedStream(&codedInput): Failed "
        "to parse the ONNX model.",
        "this is no ONNX model",
    ),
    (
        'INVALID_NODE bad1 NoSuchOp: creator && "Plugin not found, are the plugin name, version, and '
        'namespace correct?"',
        "the parser knows no such operator",
    ),
    (
        "Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported.",
        "quantized asymmetrically",
    ),
    (
        "Unable to load library: libnvinfer_lean.so.1",
        "carries the lean runtime, and libnvinfer_lean.so.1",
    ),
    (
        "Error Code 1: Myelin (x graph_jit.cpp:278: CHECK(status == CUDA_SUCCESS) failed. y)",
        "the builder needs a GPU, and found none",
    ),
    (
        "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine cannot run on this "
        "GPU, which has compute capability 9.0. Supported compute capabilities: 8.0 8.6 8.9 12.0 12.1 "
        ">12.0. TensorRT-RTX does not support this compute capability, so the engine cannot be rebuilt "
        "for it. In throwUnlessComputeCapSupported at /_src/runtime/dispatch/runtime.cpp:84)",
        "knows GPUs of compute capability 8.0 8.6 8.9 12.0 12.1 >12.0, and the GPU here has 9.0",
    ),
]


@pytest.mark.parametrize(("said", "wanted"), SAID)
def test_what_it_means(said, wanted):
    found = messages.meaning([LogLine("I", "Loaded engine"), LogLine("E", said)])
    assert found is not None
    assert wanted in found.text
    assert found.hint
    assert "{" not in found.text + found.hint.replace("{min", "").replace("`batch: {", "")


def test_what_is_not_known_stays_as_it_was_said():
    error = messages.explained("it failed", [LogLine("E", "Internal mystery 42"), LogLine("I", "bye")])
    assert error.message == "it failed\n  TensorRT said: [E] Internal mystery 42"
    assert error.hint == ""
    assert error.lines == ("[E] Internal mystery 42",)


def test_the_first_that_is_known_is_the_cause():
    lines = [LogLine("E", SAID[2][0]), LogLine("E", SAID[8][0])]
    assert "is truncated" in messages.explained("it failed", lines).message
    assert "is truncated" not in messages.explained("it failed", lines[::-1]).message


def test_a_missing_driver_explains_only_what_nothing_else_does():
    driver = LogLine("E", "CUDA initialization failure with error: 35")
    profile = LogLine(
        "E", "Network has dynamic or shape inputs, but no optimization profile has been defined."
    )
    assert "no optimization profile" in messages.meaning([driver, profile]).text
    assert "CUDA error 35" in messages.meaning([driver]).text


def test_warnings_are_shown_where_there_is_no_error_and_no_line_twice():
    lines = [LogLine("W", "a"), LogLine("W", "a"), LogLine("I", "b")]
    assert messages.last_errors(lines) == ["[W] a"]
    assert messages.last_errors([*lines, LogLine("F", "c")]) == ["[F] c"]
    assert messages.last_errors([]) == []


def test_the_logger_hands_on_every_line_with_its_severity():
    heard = []
    module = types.SimpleNamespace(ILogger=object)
    log = messages.collector(module, heard.append)
    log.log(types.SimpleNamespace(name="INTERNAL_ERROR"), " bad \n")
    log.log("Severity.WARNING", "hm")
    assert heard == [LogLine("F", "bad"), LogLine("W", "hm")]
