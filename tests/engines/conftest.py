import ctypes

import fake_driver
import fake_tensorrt
import pytest

from optcli.engines import driver
from optcli.engines.bindings import Bindings
from optcli.engines.execution import Execution
from optcli.engines.gpu import Gpu


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    """The path of a compiled fake driver."""
    return fake_driver.compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(fake_cuda, monkeypatch):
    """The fake driver in the place of libcuda.so.1; gives its own library, for its counters."""
    for name in ("FAKE_CUDA_INIT", "FAKE_CUDA_DEVICES", "FAKE_CUDA_FAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(driver, "LIBRARY", str(fake_cuda))
    monkeypatch.setenv("FAKE_CUDA", str(fake_cuda))
    driver._open.cache_clear()
    yield ctypes.CDLL(str(fake_cuda))
    driver._open.cache_clear()


@pytest.fixture
def execution(cuda):
    """`execution(plan, **options)`: an engine of the fake TensorRT, closed at the end."""
    opened = []

    def make(plan, *, rtx=False, **options):
        module = fake_tensorrt.as_rtx() if rtx else fake_tensorrt
        bindings = Bindings(module, "tensorrt_rtx" if rtx else "tensorrt")
        opened.append(Execution(bindings, plan, Gpu(0), **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
