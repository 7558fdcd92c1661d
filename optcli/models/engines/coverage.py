"""Which nodes of an ONNX model the parser of a TensorRT takes; nothing is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.models.engines import messages
from optcli.models.engines.bindings import load
from optcli.models.engines.building import parser_error

if TYPE_CHECKING:
    from optcli.models.engines.process import JobChannel


def job(job: dict[str, Any], talk: JobChannel) -> dict[str, Any]:
    """What `coverage` finds; the job has `product`, `onnx` (a path) and `nodes` (name, operator)."""
    bindings = load(job["product"])
    logger = messages.collector(bindings.module, talk.heard)
    refused = coverage(bindings.module, logger, job["onnx"], [tuple(node) for node in job["nodes"]])
    return {"parser": bindings.title, "refused": refused}


def coverage(module: Any, logger: Any, path: str, nodes: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The nodes that the parser refuses, each with `node`, `operator` and `why`.

    These are the nodes of operators that it does not know at all, and the node at which parsing stops.
    `tensorrt` needs a driver for this; without one it ends the process.
    """
    builder = module.Builder(logger)
    flag = getattr(module.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    # 8.6 takes no ONNX model without this flag; 10 ignores it, 11 no longer has it.
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = module.OnnxParser(network, logger)
    unknown = {operator for _, operator in nodes if not parser.supports_operator(operator)}
    refused = [
        {"node": name, "operator": operator, "why": "the parser knows no such operator"}
        for name, operator in nodes
        if operator in unknown
    ]
    if not parser.parse_from_file(path):
        for index in range(parser.num_errors):
            error = _error(parser.get_error(index), nodes)
            if error["node"] not in {each["node"] for each in refused} or not error["node"]:
                refused.append(error)
    return refused


def _error(error: Any, nodes: list[tuple[str, str]]) -> dict[str, str]:
    """A parser's error with the node's name; before 10 it has its number alone."""
    record = parser_error(error)
    index, why = record["node"], record["text"].partition("\n")[0]
    name, operator = record["name"], record["operator"]
    if not hasattr(error, "node_name") and 0 <= index < len(nodes):
        name, operator = nodes[index]
    return {"node": name, "operator": operator, "why": why}
