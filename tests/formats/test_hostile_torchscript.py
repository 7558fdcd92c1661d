"""No TorchScript file touches another file, whatever its code is called and however it is written."""

import pytest
import torch
from hostile_archives import members, written

from optcli.errors import InputError, TrustError
from optcli.formats import torchscript as torchscript_format
from optcli.formats.scanning import Scan
from optcli.formats.torchscript_archive import scan_code

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


def test_the_rewritten_file_itself_opens_and_the_changed_code_is_what_it_runs(files, tmp_path):
    path = written(tmp_path / torchscript_format.FILE, files)
    assert torchscript_format.open(tmp_path)(torch.ones(2)).tolist() == [2, 2]
    marker = tmp_path / "marker"
    written(path, {**files, code_of(files): writing(files, marker)})
    with torchscript_format.quiet():  # this is what is refused below
        torch.jit.load(str(path))(torch.ones(2))
    assert marker.exists()


def test_code_under_a_name_of_other_case_is_refused(files, refused, tmp_path):
    """torch finds members without looking at case, and takes `.PY` for code."""
    marker = tmp_path / "marker"
    name = code_of(files)
    for other in (name[:-3] + ".PY", name.upper(), "CODE/" + name[5:]):
        changed = {key: value for key, value in files.items() if key != name}
        refused({**changed, other: writing(files, marker)}, "has code in", marker, always=True)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("change", [str, str.upper, str.title])
def test_code_that_is_there_twice_is_refused(files, refused, tmp_path, first, change):
    marker = tmp_path / "marker"
    extra = [(change(code_of(files)), writing(files, marker))]
    listed = list(files.items())
    refused(extra + listed if first else listed + extra, "more than one way", marker, always=True)


def test_the_form_before_torch_1_4_is_refused(files, refused):
    """Its model.json can name any member as code."""
    for name in ("model.json", "MODEL.json"):
        refused({**files, name: b'{"mainModule": {}}'}, "no longer writes", always=True)


@pytest.mark.parametrize(
    "line",
    [
        # the operator without calling it at once
        "f = x.save",
        "f = (x).save\n  f('marker')",
        "g = torch.save",
        "g = torch.from_file",
        'f = getattr(x, "\\163ave")',
        # words hidden from one reader by what ends a line or a text for the other
        "y = 1 # a comment\r'''\n  torch.save(x, 'marker')\n  # '''",
        "y = '''\n  torch.save(x, 'marker')\n  '''",
        "y = r'\\'; torch.save(x, 'marker') #'",
        "y = torch\\\n.save(x, 'marker')",
        "y = torch\\\n  .\\\n save(x, 'marker')",
        "tоrch.save(x, 'marker')",  # with a letter that is not Latin
        "y = x\x0c.save('marker')",
        # other ways to an operator
        "(torch).save(x, 'marker')",
        "ops.aten.save(x, 'marker')",
        "y = ops.aten.from_file('marker')",
        "ops.prim.PythonOp(x)",
        "y = ops.prim.rpc_sync('worker', x)",
        "y = ops.image.read_file('marker')",
        "y = ops.debugprims.load_tensor('marker', [1], [1])",
        "ops.c10d.barrier(x)",
        "y = torch.distributed.rpc.rpc_sync(x)",
        "y = __torch__.torch.classes.dist_c10d.Store()",
    ],
)
def test_code_that_could_do_more_than_compute(line, tmp_path):
    found = Scan()
    try:
        scan_code(f"def forward(self, x: Tensor) -> Tensor:\n  {line}\n  return x\n", tmp_path, found)
    except InputError:
        return  # no words at all
    assert found.doubts


def test_code_that_runs_while_the_file_is_opened_is_read_too(refused, tmp_path):
    class Loud(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.training = False

        @torch.jit.export
        def __getstate__(self):
            return torch.zeros(1), self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[torch.Tensor, bool]):
            self.training = state[1]

        def forward(self, x):
            return x

    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.script(Loud()), tmp_path)
    files = members(tmp_path / torchscript_format.FILE)
    name, marker = next(n for n in files if n.endswith(".py")), tmp_path / "marker"
    assert b"def __setstate__" in files[name]
    place = files[name].index(b"    self.training", files[name].index(b"def __setstate__"))
    line = f'    torch.save(state[0], "{marker}")\n'.encode()
    refused({**files, name: files[name][:place] + line + files[name][place:]}, r"save\(\)", marker)


class Restored(torch.nn.Module):
    """Gives its state away and takes it back; what it does then may be a loop."""

    def __init__(self):
        super().__init__()
        self.count = 1

    def forward(self, x):
        for _ in range(self.count):
            x = x + 1
        return x

    @torch.jit.export
    def __getstate__(self):
        return self.count, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.count = state[0]
        self.training = state[1]


class Looping(Restored):
    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.count = 1
        self.training = state[1]
        while self.count > 0:
            self.count += 1


def endless(count: int) -> int:
    for _ in range(4611686018427387904):
        count += 1
    return count


class LoopingElsewhere(Restored):
    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.count = endless(state[0])
        self.training = state[1]


def deep(count: int) -> int:
    return deeper(count) + deeper(count)


def deeper(count: int) -> int:
    return still_deeper(count) + still_deeper(count)


def still_deeper(count: int) -> int:
    return deepest(count) + deepest(count)


def deepest(count: int) -> int:
    return count + 1


class Deep(Restored):
    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.count = deep(state[0])
        self.training = state[1]


@pytest.mark.parametrize("network", [Looping, LoopingElsewhere, Deep])
def test_a_loop_that_runs_while_the_file_is_opened_is_a_doubt(refused, tmp_path, network):
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.script(network()), tmp_path)
    assert torchscript_format.doubts(tmp_path) == (
        "it runs a loop, or calls within calls, as soon as it is opened",
    )
    refused(members(tmp_path / torchscript_format.FILE), "runs a loop")


def test_a_loop_that_runs_later_is_none(tmp_path):
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.script(Restored()), tmp_path)
    assert not torchscript_format.doubts(tmp_path)
    assert torchscript_format.open(tmp_path)(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    "pickle",
    [
        b"\x80\x02cposix\nsystem\n)R.",
        b"\x80\x02c__torch__.torch.classes.dist_c10d\nFileStore\n)R.",
        b"\x80\x02ctorch.distributed.rpc\nrpc\n)R.",
        b"\x80\x02\x8c\x05posix\x8c\x06system\x93)R.",
    ],
)
@pytest.mark.parametrize("member", ["data.pkl", "constants.pkl", "attributes.PKL", "bytecode.pkl"])
def test_a_pickle_with_an_object_that_torch_does_not_write_is_refused(files, refused, member, pickle):
    refused({**files, member: pickle})


@pytest.mark.parametrize("name", ["save", "from_file"])
def test_a_network_may_use_other_words_that_sound_like_files(tmp_path, name):
    code = f"""
class Net(Module):
  {name} : List[int]
  load : Tensor
  def forward(self: __torch__.Net, x: Tensor) -> Tensor:
    y = self.load
    return torch.div(x, y, rounding_mode="floor")
"""
    scan_code(code, tmp_path, found := Scan())
    assert found == Scan()
