"""Which nodes a parser takes: the same calls on every version, whose errors name nodes differently."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from optcli.models.engines.building import coverage

SURFACES = sorted((Path(__file__).parent / "surface").glob("*.json"))
NODES = [("first", "Relu"), ("odd", "NoSuchOp"), ("last", "Conv")]


class Error:
    """An error of a parser before 10: the node by its number."""

    def __init__(self, number, text):
        self._number, self._text = number, text

    def node(self):
        return self._number

    def desc(self):
        return self._text


class NamedError(Error):
    def node_name(self):
        return NODES[self._number][0]

    def node_operator(self):
        return NODES[self._number][1]


def module(errors, asked, *, explicit_batch=True):
    class Parser:
        num_errors = len(errors)

        def __init__(self, network, logger):
            asked.append(network)

        def supports_operator(self, operator):
            return operator != "NoSuchOp"

        def parse_from_file(self, path):
            return not errors

        def get_error(self, index):
            return errors[index]

    flags = {"EXPLICIT_BATCH": 0} if explicit_batch else {}
    return SimpleNamespace(
        Builder=lambda logger: SimpleNamespace(create_network=lambda given: given),
        NetworkDefinitionCreationFlag=SimpleNamespace(**flags),
        OnnxParser=Parser,
    )


@pytest.mark.parametrize("kind", [Error, NamedError])
def test_nodes_are_named_whatever_the_version_tells(kind):
    found = coverage(module([kind(2, "bad weights\nand more")], []), None, "a.onnx", NODES)
    assert found == [
        {"node": "odd", "operator": "NoSuchOp", "why": "the parser knows no such operator"},
        {"node": "last", "operator": "Conv", "why": "bad weights"},
    ]


def test_a_node_is_told_once():
    found = coverage(module([NamedError(1, "Plugin not found")], []), None, "a.onnx", NODES)
    assert [each["node"] for each in found] == ["odd"]


def test_a_model_without_nodes_to_blame():
    found = coverage(module([Error(-1, "no ONNX file")], []), None, "a.onnx", NODES[:1])
    assert found == [{"node": "", "operator": "", "why": "no ONNX file"}]


@pytest.mark.parametrize(("explicit_batch", "flags"), [(True, 1), (False, 0)])
def test_networks_are_made_as_the_version_wants(explicit_batch, flags):
    asked = []
    assert coverage(module([], asked, explicit_batch=explicit_batch), None, "a.onnx", NODES[:1]) == []
    assert asked == [flags]


@pytest.mark.parametrize("surface", SURFACES, ids=lambda path: path.stem)
def test_every_version_has_what_is_called(surface):
    classes = json.loads(surface.read_text())["classes"]
    parser = {"supports_operator", "parse_from_file", "num_errors", "get_error"}
    assert parser <= set(classes["OnnxParser"])
    assert {"node", "desc"} <= set(classes["ParserError"])
    assert "create_network" in classes["Builder"]
