"""No `.pt2` archive runs code when it is opened: each of these once did, or would with torch alone."""

import io
import json

import pytest
import torch
from hostile_archives import members, pickled, with_program, written

from optcli.errors import InputError, TrustError
from optcli.formats import exported as exported_format
from optcli.formats import exported_program

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
            assert isinstance(failure.value, TrustError) != always
            assert always or "--trust" in failure.value.hint
        assert marker is None or not marker.exists()

    return check


def test_the_rewritten_archive_itself_opens(files, tmp_path):
    written(tmp_path / exported_format.FILE, files)
    assert exported_format.open(tmp_path).module()(torch.ones(4, 8)).shape == (4, 2)


def test_a_config_of_no_model_exempts_nothing(files, refused, tmp_path):
    marker = tmp_path / "marker"
    real = json.loads(files[CONFIG])
    real["config"]["linear.weight"]["use_pickle"] = True
    harmless = {"config": {"x": {"path_name": "weight_0", "use_pickle": False}}}
    unused = "data/weights/other_weights_config.json"
    content = {**files, CONFIG: json.dumps(real).encode(), unused: json.dumps(harmless).encode()}
    refused(
        {**content, "data/weights/weight_0": pickled(marker)},
        "belongs to no model",
        marker,
        always=True,
    )


@pytest.mark.parametrize("flag", [0, "", None, "false", []])
def test_only_a_plain_false_says_that_a_weight_is_not_unpickled(files, refused, tmp_path, flag):
    marker = tmp_path / "marker"
    real = json.loads(files[CONFIG])
    real["config"]["linear.weight"]["use_pickle"] = flag
    refused(
        {**files, CONFIG: json.dumps(real).encode(), "data/weights/weight_0": pickled(marker)},
        "holds more than tensors",
        marker,
    )


@pytest.mark.parametrize("other", ["weight_0", "WEIGHT_0", "../weights/weight_0", "./weight_0"])
def test_a_weight_that_is_both_raw_and_pickled_is_refused(files, refused, tmp_path, other):
    marker = tmp_path / "marker"
    real = json.loads(files[CONFIG])
    first = real["config"]["linear.weight"]
    real["config"]["second"] = {**first, "path_name": other, "use_pickle": True}
    refused(
        {**files, CONFIG: json.dumps(real).encode(), first_of(first): pickled(marker)},
        None,
        marker,
        always=other != "weight_0",
    )


def first_of(payload):
    return f"data/weights/{payload['path_name']}"


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
    ["data/aotinductor/model/a.so", "models/other", "data/weights/model.pt.so", "code/x.py", "x.pkl",
     "data/weights/other.pt", "data/executorch/a.pte", "data/constants/tensor_0.pt"],
)  # fmt: skip
def test_a_member_that_torch_export_does_not_write_is_refused(files, refused, tmp_path, name):
    marker = tmp_path / "marker"
    refused({**files, name: pickled(marker)}, "does not write", marker)


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


def test_legacy_weights_are_scanned(files, refused, tmp_path):
    marker = tmp_path / "marker"
    refused({**files, "data/weights/model.pt": pickled(marker)}, "more than tensors", marker)


def old_layout(pickles: dict[str, bytes], program: bytes) -> dict[str, bytes]:
    return {"version": b"8.14", "serialized_exported_program.json": program, **pickles}


@pytest.mark.parametrize(
    "name", ["state_dict.json", "constants.json", "example_inputs.pt", "state_dict.pt"]
)
def test_the_layout_up_to_torch_2_7_is_scanned_too(files, tmp_path, name):
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


def graph(program):
    return program["graph_module"]["graph"]


def tree(kind, context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


def signature(program):
    return program["graph_module"]["module_call_graph"][0]["signature"]


ENUM = json.dumps([{"__enum__": True, "fqn": "hostile_module:X", "name": "A"}])
DEFAULT = json.dumps(
    {"default_factory_module": "hostile_module", "default_factory_name": "f", "dict_context": ["a"]}
)
CODE = "x); open('marker', 'w'"
PROGRAMS = {
    "a call of Python's operator module": lambda p: graph(p)["nodes"][0].update(
        target="_operator.call"
    ),
    "attrgetter": lambda p: graph(p)["nodes"][0].update(target="_operator.attrgetter"),
    "methodcaller": lambda p: graph(p)["nodes"][0].update(target="_operator.methodcaller"),
    "an operator that writes files": lambda p: graph(p)["nodes"][0].update(
        target="torch.ops.aten.save.default"
    ),
    "an operator that reads files": lambda p: graph(p)["nodes"][0].update(
        target="torch.ops.aten.from_file.out"
    ),
    "a call of another machine": lambda p: graph(p)["nodes"][0].update(
        target="torch.ops.prim.rpc_sync.default"
    ),
    "native code by its path": lambda p: graph(p)["nodes"][0].update(
        target="torch.ops.higher_order.aoti_call_delegate"
    ),
    "a function as an argument": lambda p: graph(p)["nodes"][0]["inputs"][0].update(
        arg={"as_operator": "torch.os.system"}
    ),
    "a size with a name that is code": lambda p: graph(p)["inputs"].append(
        {"as_sym_int": {"as_name": CODE}}
    ),
    "a parameter with a name that is code": lambda p: p["graph_module"]["signature"]["input_specs"][0][
        "parameter"
    ].update(parameter_name='a", open("marker", "w"), "'),
    "an argument with a name that is code": lambda p: signature(p).update(forward_arg_names=[CODE]),
    "a text input with code": lambda p: graph(p)["inputs"].append(
        {"as_string": "' or open('marker')#"}
    ),
    "inputs that import a class": lambda p: signature(p).update(in_spec=tree("builtins.dict", ENUM)),
    "inputs that import a function": lambda p: signature(p).update(
        in_spec=tree("collections.defaultdict", DEFAULT)
    ),
    "outputs that import a class": lambda p: signature(p).update(out_spec=tree("builtins.dict", ENUM)),
    "a dictionary with a key that is code": lambda p: signature(p).update(
        in_spec=tree("builtins.dict", json.dumps([CODE]))
    ),
    "a tensor called metadata with code in its size": lambda p: graph(p)["tensor_values"].update(
        metadata={"sizes": [{"as_expr": {"expr_str": "open('marker', 'w')"}}]}
    ),
    "a guard that calls": lambda p: p.update(guards_code=["exec('')"]),
    "a guard with a text": lambda p: p.update(guards_code=["L['x'] == \"'); open('marker', 'w')#\""]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_that_does_more_than_compute_is_refused(files, refused, tmp_path, name):
    refused(with_program(files, PROGRAMS[name]))


@pytest.mark.parametrize("key", ["from_node", "custom"])
def test_a_name_of_a_source_has_no_end_of_line(files, refused, key):
    text = json.dumps([{"name": "a\nexec('')", "from_node": []}])
    refused(
        with_program(files, lambda p: graph(p)["nodes"][0]["metadata"].update({key: text})),
        "odd characters",
    )


def escaped(code):
    """Code in a text, each odd character by its number: torch takes the ends of line out."""
    return "".join(each if each.isalnum() else f"\\\nx{ord(each):02x}" for each in code)


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


def test_a_size_with_an_escaped_text_is_refused(files, refused, tmp_path):
    marker = tmp_path / "marker"
    code = f'open("{marker}", "w").close() or 3'
    refused(
        with_program(files, lambda p: next(sizes_of(p)).update(expr_str=f"Abs('{escaped(code)}')")),
        "holds the code",
        marker,
    )


def test_a_guard_that_ends_the_message_around_it_is_refused(files, refused, tmp_path):
    marker = tmp_path / "marker"
    code = f'"); open("{marker}", "w"); (1, "'
    guard = f"1 == 1 or '{escaped(code)}'"
    refused(with_program(files, lambda p: p.update(guards_code=[guard])), "holds the code", marker)


@pytest.mark.parametrize("odd", ["\r", "\x0c", "\x0b", "\u2028", "\0"])
@pytest.mark.parametrize("key", ["stack_trace", "nn_module_stack"])
def test_a_source_line_ends_as_python_ends_lines(files, refused, key, odd):
    """Compilers write them into comments of code."""
    text = f"File x{odd}exec('')"
    refused(
        with_program(files, lambda p: graph(p)["nodes"][0]["metadata"].update({key: text})),
        "odd characters",
    )


@pytest.mark.parametrize("text", ['x"); system("', "x\\", "a\nb", "a\rb", "é"])
def test_a_message_that_ends_its_quotes_is_refused(files, refused, text):
    """AOTInductor writes messages of assertions into C++ as they are."""
    argument = {"name": "msg", "arg": {"as_string": text}, "kind": 1}
    refused(
        with_program(files, lambda p: graph(p)["nodes"][0]["inputs"].append(argument)),
        "is given the text",
    )


def test_options_of_operators_on_graphs_are_plain(files, refused):
    def change(program):
        node = graph(program)["nodes"][0]
        node["target"] = "torch.ops.higher_order.flex_attention"
        node["inputs"].append({"name": "", "arg": {"as_string": "x; f('y')"}, "kind": 1})

    refused(with_program(files, change), "as_string")


def test_messages_as_torch_writes_them_are_no_doubt(tmp_path):
    class Checked(torch.nn.Module):
        def forward(self, x):
            n = x.sum().item()
            torch._check(n > 2, lambda: "it's too small: n > 2 (wanted), isn't it?")
            return torch.einsum("bi,bj->bij", x, x) + n

    program = torch.export.export(Checked(), (torch.ones(2, 2, dtype=torch.long),))
    exported_format.save(program, tmp_path)
    assert exported_format.doubts(tmp_path) == ()


def test_a_size_with_a_number_that_torch_counts_up_to_is_refused(files, refused):
    name = "u99999999999"
    refused(
        with_program(
            files,
            lambda p: p["range_constraints"].update({name: {"min_val": 0, "max_val": 1}}),
        ),
        "names a size",
    )


@pytest.mark.parametrize("name", ["a.b", "ｅxec", "x y"])
def test_a_value_has_a_plain_name(files, refused, name):
    refused(with_program(files, lambda p: graph(p)["inputs"][0]["as_tensor"].update(name=name)))


def test_a_weight_named_as_pythons_own_attribute_is_refused(files, refused):
    config = json.loads(files[CONFIG])
    config["config"]["linear.__class__.forward"] = config["config"]["linear.weight"]
    refused({**files, CONFIG: json.dumps(config).encode()}, "names something")


def test_no_more_than_the_known_operators_of_python_is_taken():
    import operator

    known = {
        name for name in dir(operator) if exported_program._ON_SIZES.fullmatch(f"_operator.{name}")
    }
    assert known >= {"add", "getitem", "floordiv"}
    assert not known & {"attrgetter", "methodcaller", "call", "itemgetter", "setitem", "delitem"}
