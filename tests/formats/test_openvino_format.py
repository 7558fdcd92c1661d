"""The OpenVINO format, and that nothing is reported home."""

import subprocess
import sys

import numpy as np
import pytest

from optcli.errors import InputError
from optcli.models.formats import openvino as openvino_format

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    from openvino import Model, opset13

    x = opset13.parameter([-1, 4], name="x", dtype=np.float32)
    weight = opset13.constant(np.full((200, 4), 0.5, np.float32))
    y = opset13.matmul(x, weight, False, True)
    model = Model([y], [x], "tiny")
    model.inputs[0].get_tensor().set_names({"x"})
    model.outputs[0].get_tensor().set_names({"y"})
    openvino_format.save(model, tmp_path)
    return tmp_path


def test_a_saved_model_keeps_names_sizes_and_full_weights(folder):
    openvino_format.open(folder)
    model = openvino_format.open(folder)
    assert openvino_format.input_names(model) == ("x",)
    assert openvino_format.output_names(model) == ("y",)
    assert not openvino_format.is_quantized(model)
    assert model.inputs[0].get_partial_shape()[0].is_dynamic
    assert (folder / "model.bin").stat().st_size == 200 * 4 * 4


@pytest.mark.parametrize("file", ["model.xml", "model.bin"])
def test_a_missing_or_truncated_file_is_an_input_error(folder, file):
    path = folder / file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a valid OpenVINO model"):
        openvino_format.open(folder)
    path.unlink()
    with pytest.raises(InputError, match="missing"):
        openvino_format.open(folder)


@pytest.mark.long
def test_openvino_and_nncf_are_loaded_without_their_telemetry():
    code = """
import sys
from optcli.models.formats import openvino as openvino_format
openvino_format.core()
import nncf
from nncf.telemetry import telemetry
import openvino.tools.ovc.telemetry_utils as utils
assert "openvino_telemetry" not in sys.modules or sys.modules["openvino_telemetry"] is None
assert utils.tm.__name__.endswith("telemetry_stub"), utils.tm
assert "Mock" in type(telemetry).__name__, telemetry
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
