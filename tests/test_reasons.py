"""What libraries raise is one sentence where people read it; the log has the rest."""

import pytest

from optcli.errors import StepError, did_you_mean, first_line, raised_as
from optcli.passes._torch.tracing import following

GATHER = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node. Name:'' "
    "Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/gather.cc:150 "
    "void onnxruntime::core_impl(const Tensor*, Tensor*, int64_t) [with Tin = long; Tout = float[]] "
    "Out of range value in index tensor"
)


def test_positions_in_cpp_go_and_what_is_said_stays():
    said = first_line(RuntimeError(GATHER))
    assert said.endswith("Name:'' Status Message: Out of range value in index tensor")
    at = "/a/b/loop.h:47 onnxruntime::Helper::Helper(const Shape&, bool) "
    assert first_line(ValueError(at + "sizes differ")) == "sizes differ"
    assert first_line(ValueError("/a/b.cc:9 sizes differ")) == "sizes differ"
    assert first_line(ValueError("tflite/div.cc:9 it is 0. Node 1 (DIV) failed")) == (
        "it is 0. Node 1 (DIV) failed"
    )
    assert first_line(ValueError("model.cc:9 and (this) stay")) == "model.cc:9 and (this) stay"


def test_what_a_library_says_at_length_is_cut():
    long = " + ".join(f"4*Min(300, u{each})" for each in range(900))
    with pytest.raises(StepError) as caught, raised_as(StepError, "torch.export failed"):
        raise RuntimeError(f"Could not guard on {long}\nfurther lines")
    assert caught.value.message.startswith("torch.export failed: Could not guard on 4*Min(300, u0)")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (
            "Could not guard on data-dependent expression u0 > 4\n"
            "Caused by: (torchvision/ops/boxes.py:86 in batched_nms)\n",
            " at line 86 of ops/boxes.py, in batched_nms: ",
        ),
        (
            "Data-dependent branching\nfrom user code:\n"
            '  File "a.py", line 3, in outer\n    inner()\n  File "net.py", line 7, in forward\n',
            " at line 7 of net.py, in forward: ",
        ),
        ("Dynamic control flow is not supported", "the network: "),
    ],
)
def test_where_torch_export_cannot_follow_values_is_named(text, at):
    with pytest.raises(StepError) as caught, following():
        raise RuntimeError(text)
    assert at in caught.value.message
    assert "export_onnx" in caught.value.hint


def test_other_errors_of_torch_export_stay():
    with pytest.raises(KeyError), following():
        raise KeyError("x")


def test_of_a_long_list_the_nearest_few_are_named():
    names = [f"backbone.{block}.{part}" for block in range(16) for part in ("conv", "norm", "act")]
    hint = did_you_mean("features.0.0", names, lists="`network.named_modules()`")
    assert hint.startswith("nearest: ")
    assert hint.count("backbone.") == 5
    assert hint.endswith(" and 43 more (`network.named_modules()` lists them)")
    assert did_you_mean("features.0.0", names[:3]) == f"one of: {', '.join(sorted(names[:3]))}"
