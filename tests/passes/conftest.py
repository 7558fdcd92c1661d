"""What tests of several passes start from; nobody writes into it."""

import pytest
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.artifact import Artifact


@pytest.fixture(scope="session")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The network `Conv` as ONNX."""
    from optcli.passes.export_onnx import ExportOnnx

    folder = tmp_path_factory.mktemp("conv")
    source = torch_artifact(folder, "Conv")
    return apply(ExportOnnx(exporter="dynamo"), source, folder / "onnx", INPUTS["Conv"])
