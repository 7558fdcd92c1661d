"""No `.pt2` archive runs code when it is opened: each of these once did, or would with torch alone."""

import io
import json

import pytest
import torch
from hostile_archives import members, pickled, run_opening, with_program, written

from optcli.errors import InputError, TrustError
from optcli.models.formats import exported as exported_format

pytestmark = pytest.mark.slow

CONFIG = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    shapes = ({0: torch.export.Dim("batch", min=1, max=9)},)
    program = torch.export.export(Net().eval(), (torch.ones(3, 8),), dynamic_shapes=shapes)
    exported_format.save(program, folder)
    return members(folder / exported_format.FILE)


@pytest.fixture
def refused(tmp_path):
    """Writes an archive and sees that opening it is refused and makes no marker.

    With `always` nobody's trust opens it; else the refusal names what does.
    """

    def check(content, match=None, marker=None, *, always=False):
        written(tmp_path / exported_format.FILE, content)
        for trust in (False, True) if always else (False,):
            with pytest.raises(InputError, match=match) as failure:
                exported_format.open(tmp_path, trust=trust)
            if match is not None:
                assert isinstance(failure.value, TrustError) == ("more than tensors" in match)
        assert marker is None or not marker.exists()

    return check


def test_the_rewritten_archive_itself_opens(files, tmp_path):
    written(tmp_path / exported_format.FILE, files)
    assert exported_format.open(tmp_path).module()(torch.ones(4, 8)).shape == (4, 2)


@pytest.mark.parametrize("flag", [0, "", None, "false", [], True])
def test_a_weight_is_unpickled_as_a_tensor_or_not_at_all(files, refused, tmp_path, flag):
    marker = tmp_path / "marker"
    real = json.loads(files[CONFIG])
    real["config"]["linear.weight"]["use_pickle"] = flag
    content = {**files, CONFIG: json.dumps(real).encode(), "data/weights/weight_0": pickled(marker)}
    refused(content, "more than tensors" if flag else "torch cannot read", marker)


@pytest.mark.parametrize("kind", ["opaque_obj_0", "custom_obj_0"])
def test_objects_of_classes_are_refused_whatever_the_config_says(files, refused, tmp_path, kind):
    marker = tmp_path / "marker"
    config = json.loads(files[CONSTANTS])
    meta = json.loads(files[CONFIG])["config"]["linear.weight"]
    config["config"]["c"] = {**meta, "path_name": kind, "use_pickle": False}
    content = {**files, CONSTANTS: json.dumps(config).encode()}
    refused({**content, f"data/constants/{kind}": pickled(marker, "pickle")}, None, marker)
    refused({**files, f"data/constants/{kind}": pickled(marker, "pickle")}, "more than tensors", marker)


@pytest.mark.parametrize(
    "name", ["data/weights/weight_0", "DATA/weights/Weight_0", "models/MODEL.json"]
)
@pytest.mark.parametrize("first", [True, False])
def test_two_members_of_one_name_are_refused(files, refused, tmp_path, name, first):
    extra = [(name, pickled(tmp_path / "marker"))]
    listed = list(files.items())
    refused(
        extra + listed if first else listed + extra,
        "more than one way",
        tmp_path / "marker",
        always=True,
    )


@pytest.mark.parametrize(
    "name",
    [
        "models/other.json/",
        "code/",
        "../evil",
        "/evil",
        "a/../../evil",
        "a\\..\\b",
        "a//b",
        "./a",
        "a\nb",
    ],
)
def test_a_member_with_an_odd_name_is_refused(files, refused, name):
    refused({**files, name: b"x"}, "more than one way", always=True)


def test_legacy_weights_are_tensors_alone(files, refused, tmp_path):
    marker = tmp_path / "marker"
    refused({**files, "data/weights/model.pt": pickled(marker)}, "more than tensors", marker)


def old_layout(pickles: dict[str, bytes], program: bytes) -> dict[str, bytes]:
    return {"version": b"8.14", "serialized_exported_program.json": program, **pickles}


@pytest.mark.parametrize(
    "name", ["state_dict.json", "constants.json", "example_inputs.pt", "state_dict.pt"]
)
def test_the_layout_up_to_torch_2_7_holds_tensors_alone_too(files, tmp_path, name):
    stream = io.BytesIO()
    torch.save({}, stream)
    parts = ("state_dict.pt", "constants.pt", "example_inputs.pt")
    pickles = {f"serialized_{part}": stream.getvalue() for part in parts}
    marker = tmp_path / "marker"
    pickles[f"serialized_{name}"] = pickled(marker)
    content = old_layout(pickles, files["models/model.json"])
    written(tmp_path / exported_format.FILE, content, top="")
    with pytest.raises(TrustError, match="more than tensors"):
        exported_format.open(tmp_path)
    assert not marker.exists()


def test_a_program_in_the_layout_up_to_torch_2_7_opens(files, tmp_path):
    from torch._export.serde.serialize import serialize

    program = torch.export.export(Net().eval(), (torch.ones(3, 8),))
    made = serialize(program)
    content = old_layout(
        {
            "serialized_state_dict.pt": made.state_dict,
            "serialized_constants.pt": made.constants,
            "serialized_example_inputs.pt": made.example_inputs,
        },
        made.exported_program,
    )
    written(tmp_path / exported_format.FILE, content, top="")
    assert exported_format.open(tmp_path).module()(torch.ones(3, 8)).shape == (3, 2)


def test_code_in_the_graph_reaches_nothing_from_a_confined_worker(files, tmp_path, monkeypatch):
    """torch evaluates the size of an input as Python."""
    marker = tmp_path / "marker"

    def change(program):
        size = next(sizes_of(program))
        size["expr_str"] = f"open({str(marker)!r}, 'w').close() or 3"

    written(tmp_path / exported_format.FILE, with_program(files, change))
    run_opening(exported_format, tmp_path, monkeypatch, confined=True)
    assert not marker.exists()
    run_opening(exported_format, tmp_path, monkeypatch, confined=False)
    assert marker.exists()  # what the wall held back


def sizes_of(program):
    """Every expression in a program, as the dictionaries that hold them."""
    if isinstance(program, dict):
        if "expr_str" in program:
            yield program
        for value in program.values():
            yield from sizes_of(value)
    elif isinstance(program, list):
        for value in program:
            yield from sizes_of(value)
