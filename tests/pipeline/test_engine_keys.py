"""Keys of engines: the product's version, the GPU and its driver are in them, the CPU is not."""

import pytest
from tiny_project import HEAD, Project

from optcli import environment
from optcli.models.engines import driver
from optcli.models.engines.driver import CudaDevice
from optcli.pipeline.making import planned
from optcli.store import Store

VARIANTS = """\
  plain: []
  trt: [{tensorrt_engine: {precision: fp16}}]
  rtx: [{tensorrt_rtx_engine: {compute_capabilities: [sm86]}}]
"""


class Machine:
    """What a plan finds here, to be changed."""

    def __init__(self, monkeypatch):
        self.versions = {"tensorrt": "10.16.1.11", "tensorrt_rtx": "1.7.1.116"}
        self.device = CudaDevice(0, "NVIDIA H200", "9.0", 1 << 30, "13.0", "580.1")
        self.cpu = {"model": "one", "machine": "x86_64", "flags": ["avx2"]}
        monkeypatch.delenv("OPTCLI_TENSORRT_PYTHON", raising=False)
        real = environment.version
        here = self.versions
        monkeypatch.setattr(environment, "version_in", lambda python, name: here[name])
        monkeypatch.setattr(environment, "version", lambda name: here.get(name) or real(name))
        monkeypatch.setattr(environment, "has_gpu", lambda: self.device is not None)
        monkeypatch.setattr(environment, "cpu", lambda: self.cpu)
        monkeypatch.setattr(driver, "present", lambda: self.device is not None)
        monkeypatch.setattr(driver, "devices", lambda: (self.device,))


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.fixture
def steps(project: Project, tmp_path):
    """The last step of each variant, by name."""
    path = project.recipe(VARIANTS)
    return lambda: {
        variant.name: variant.last for variant in planned(path, Store(tmp_path / "s"), (), ()).variants
    }


def test_what_they_are_bound_to_is_an_ingredient(machine, steps):
    found = steps()
    gpu = {"name": "NVIDIA H200", "compute_capability": "9.0", "driver": "580.1"}
    wanted = {"product": "tensorrt", "version": "10.16.1.11", "gpu": gpu}
    assert found["trt"].ingredients["device"] == wanted
    wanted = {"product": "tensorrt_rtx", "version": "1.7.1.116", "gpu": None}
    assert found["rtx"].ingredients["device"] == wanted


@pytest.mark.parametrize(
    "change", [{"name": "NVIDIA H100"}, {"compute_capability": "9.1"}, {"driver": "590.2"}]
)
def test_another_gpu_or_driver_is_another_key(machine, steps, change):
    before = steps()
    machine.device = CudaDevice(**{**vars(machine.device), **change})
    after = steps()
    assert before["trt"].key != after["trt"].key
    assert before["rtx"].key == after["rtx"].key, "it is built for sm86 wherever that is done"


@pytest.mark.parametrize(("product", "name"), [("tensorrt", "trt"), ("tensorrt_rtx", "rtx")])
def test_another_version_is_another_key(machine, steps, product, name):
    before = steps()
    machine.versions[product] = "99.0"
    assert before[name].key != steps()[name].key


def test_another_cpu_is_the_same_key(machine, steps):
    before = steps()
    machine.cpu = {"model": "another", "machine": "x86_64", "flags": ["avx512f"]}
    after = steps()
    assert {name: step.key for name, step in before.items()} == {
        name: step.key for name, step in after.items()
    }


def test_without_a_gpu_only_tensorrt_is_missing(machine, project, tmp_path):
    machine.device = None
    plan = planned(project.recipe(VARIANTS, head=HEAD), Store(tmp_path / "s"), (), ())
    missing = {variant.name: [one.what for one in variant.missing] for variant in plan.variants}
    assert missing == {"plain": [], "trt": ["no NVIDIA GPU was found"], "rtx": []}
    assert all(one.hint for variant in plan.variants for one in variant.missing)


def test_the_code_that_builds_them_is_an_ingredient(machine, steps, monkeypatch):
    from optcli.files.digest import FileDigests

    before, real = steps(), FileDigests.of

    def of(self, path):
        return "changed" if path.name == "building.py" else real(self, path)

    monkeypatch.setattr(FileDigests, "of", of)
    after = steps()
    assert before["trt"].key != after["trt"].key
    assert before["plain"].key == after["plain"].key
