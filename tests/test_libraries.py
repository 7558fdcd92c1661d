"""Libraries are imported as far as they are used, and beside other work where that saves time."""

import os
import subprocess
import sys
import textwrap

import pytest

ROI_ALIGN = """\
import torch
from torch._dynamo.utils import is_compile_supported
{more}

def roi_align(device):
    return "compiled" if is_compile_supported(device) else "plain"
"""
UTILS = """\
counters = {}

def is_compile_supported(device_type):
    return device_type == "cuda"
"""
SAY = """
import inspect, sys
from optcli.workers import libraries
libraries.spare_the_compiler()
import torchvision.ops.roi_align as found
loaded = "torch._dynamo" in sys.modules, "torch._dynamo.utils" in sys.modules
print(*loaded, found.roi_align("cuda"), found.roi_align("cpu"), "torch._dynamo" in sys.modules)
print(type(found.__loader__).__name__, found.__spec__.loader is found.__loader__)
print("def roi_align" in inspect.getsource(found), len(sys.meta_path))
libraries.spare_the_compiler()
print(len(sys.meta_path))
"""


def said(code, *paths):
    """What a fresh interpreter prints that finds packages in `paths`."""
    places = [*map(str, paths), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def packages(tmp_path):
    """Writes a torch, and a torchvision whose function asks the compiler; `more` is in its module."""

    def written(more=""):
        files = {
            "torch/__init__.py": "",
            "torch/_dynamo/__init__.py": "from torch._dynamo import utils",
            "torch/_dynamo/utils.py": UTILS,
            "torchvision/__init__.py": "",
            "torchvision/ops/__init__.py": "",
            "torchvision/ops/roi_align.py": ROI_ALIGN.format(more=more),
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return written


def test_the_compiler_comes_with_the_first_question(packages):
    found = said(SAY, packages())
    assert found[0] == "False False compiled plain True"
    assert found[1] == "SourceFileLoader True"
    assert found[2].startswith("True")
    assert found[2].split()[1] == found[3]


@pytest.mark.parametrize(
    "more",
    [
        "from torch._dynamo.utils import counters",
        "import torch._dynamo",
        "import torch._dynamo.utils as utils",
    ],
)
def test_a_version_that_needs_more_of_the_compiler_gets_it(packages, more):
    assert said(SAY, packages(more))[0].startswith("True True compiled plain")


def test_a_compiler_that_is_there_stays(packages):
    code = "import torch._dynamo.utils as utils\n" + SAY + "\nprint(found.is_compile_supported is utils"
    found = said(code + ".is_compile_supported)", packages())
    assert found[0] == "True True compiled plain True"
    assert found[-1] == "True"


def test_an_error_of_the_module_is_its_own(packages):
    found = said(
        """
        import sys
        from optcli.workers import libraries
        libraries.spare_the_compiler()
        try:
            import torchvision.ops.roi_align
        except ImportError as error:
            print(error)
        print("torch._dynamo.utils" in sys.modules)
        """,
        packages("import nowhere_to_be_found"),
    )
    assert found == ["No module named 'nowhere_to_be_found'", "False"]


@pytest.mark.long
@pytest.mark.slow
def test_the_real_one_runs_without_the_compiler_and_compiles_with_it():
    found = said(
        """
        import sys
        from optcli.workers import libraries
        libraries.spare_the_compiler()
        import torch, torchvision
        print("torch._dynamo" in sys.modules)
        features, boxes = torch.ones(1, 1, 8, 8), torch.tensor([[0.0, 0, 0, 4, 4]])
        print(torchvision.ops.roi_align(features, boxes, 2).tolist())
        network = torchvision.models.resnet18().eval()
        with torch.no_grad():
            print(*network(torch.zeros(1, 3, 32, 32)).shape, "torch._dynamo" in sys.modules)
        print(torchvision.ops.roi_align.__module__, torch.compile(lambda x: x + 1, backend="eager")(
            torch.zeros(1)).item())
        """
    )
    assert found == ["False", "[[[[1.0, 1.0], [1.0, 1.0]]]]", "1 1000 False", found[3]]
    assert found[3] == "torchvision.ops.roi_align 1.0"
