"""No TorchScript file touches another file, whatever its code is called and however it is written."""

import pytest
import torch
from hostile_archives import members, pickled, run_opening, written

from optcli.errors import InputError, TrustError
from optcli.models.formats import torchscript as torchscript_format

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchscript")
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.script(Net().eval()), folder)
    return members(folder / torchscript_format.FILE)


def code_of(files):
    """The member with the network's code."""
    return next(name for name in files if name.endswith(".py") and b"def forward" in files[name])


def writing(files, marker):
    """The network's code with a line that writes a file."""
    line = f'    torch.save(x, "{marker}")\n    return'.encode()
    return files[code_of(files)].replace(b"    return", line, 1)


@pytest.fixture
def refused(tmp_path):
    def check(content, match=None, marker=None, *, always=False):
        """With `always` nobody's trust opens it; else the refusal names what does."""
        written(tmp_path / torchscript_format.FILE, content)
        for trust in (False, True) if always else (False,):
            with pytest.raises(InputError, match=match) as failure:
                torchscript_format.open(tmp_path, trust=trust)
            assert isinstance(failure.value, TrustError) != always
            assert always or "--trust" in failure.value.hint
        assert marker is None or not marker.exists()

    return check


def test_the_rewritten_file_itself_opens(files, tmp_path):
    written(tmp_path / torchscript_format.FILE, files)
    assert torchscript_format.open(tmp_path)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("change", [str, str.upper, str.title])
def test_code_that_is_there_twice_is_refused(files, refused, tmp_path, first, change):
    marker = tmp_path / "marker"
    extra = [(change(code_of(files)), writing(files, marker))]
    listed = list(files.items())
    refused(extra + listed if first else listed + extra, "more than one way", marker, always=True)


def test_code_reaches_nothing_from_a_confined_worker(files, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    content = {**files, code_of(files): writing(files, marker)}
    written(tmp_path / torchscript_format.FILE, content)
    run_opening(torchscript_format, tmp_path, monkeypatch, confined=True)
    assert not marker.exists()
    run_opening(torchscript_format, tmp_path, monkeypatch, confined=False)
    assert marker.exists()  # what the wall held back


def test_a_pickle_of_pythons_objects_is_read_without_python(files, tmp_path):
    marker = tmp_path / "marker"
    written(tmp_path / torchscript_format.FILE, {**files, "data.pkl": pickled(marker, "pickle")})
    with pytest.raises(InputError):
        torchscript_format.open(tmp_path)
    assert not marker.exists()
