import fake_tensorrt
import pytest

from optcli.models.engines.bindings import Bindings
from optcli.models.engines.driver import Gpu
from optcli.models.engines.running.execution import EngineExecution


@pytest.fixture
def execution(cuda, tmp_path):  # some engines write there when they are closed
    """`execution(plan, **options)`: an engine of the fake TensorRT, closed at the end."""
    opened = []

    def make(plan, *, rtx=False, **options):
        module = fake_tensorrt.as_rtx() if rtx else fake_tensorrt
        bindings = Bindings(module, "tensorrt_rtx" if rtx else "tensorrt")
        opened.append(EngineExecution(bindings, plan, Gpu(0), **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
