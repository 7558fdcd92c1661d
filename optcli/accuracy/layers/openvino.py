"""Layer by layer in OpenVINO: nodes of a float and a quantized network that go by the same name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.accuracy.layers.measured import MeasuredLayers, Sums, weight_errors
from optcli.artifact import Artifact
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import openvino_zero_points
from optcli.models.formats.openvino import values_of
from optcli.results.outcomes import LayerError

if TYPE_CHECKING:
    import numpy as np
    from openvino import Model

    Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _FloatAndQuantized:
    """A node's output in the float network, and what reads it in the child through FakeQuantize."""

    name: str
    floats: Any
    root: Any
    chain: tuple[Any, ...]
    readers: tuple[str, ...] = ()

    @property
    def out(self) -> Any:
        return self.chain[-1].output(0) if self.chain else self.root


def compare(baseline: Artifact, child: Artifact, feeds: Sequence[Feed], threads: int) -> MeasuredLayers:
    """Rows of activations and weights; `feeds` are batches of one shape, by names of the recipe."""
    floats, other = (_opened(each) for each in (baseline, child))
    sums = Sums()
    pairs = []
    for pair in _pairs(floats, other):
        ours, reference = pair.floats.get_partial_shape(), pair.root.get_partial_shape()
        if ours.compatible(reference):
            pairs.append(pair)
        else:
            sums.differ(pair.name, str(ours), str(reference))
    if not pairs:
        return sums.measured((), ())
    whole = _opened(child)  # `other` will be cut
    outs = {pair.name: pair.out for pair in _pairs(floats, whole)}
    exact = {pair.name: _fed(other, pair) for pair in pairs}
    for piece in sums.pieces(pairs):
        _look(floats, whole, other, piece, (exact, outs), feeds, sums, threads)
    rows = [_error(pair, sums) for pair in pairs if pair.name in sums]
    return sums.measured(rows, _weights(pairs))


def _opened(artifact: Artifact) -> Model:
    """A model in which every value stands for what it does in floating point."""
    model = openvino_format.open(artifact.path)
    openvino_zero_points.move_back(model)
    return model


def _look(
    floats: Model,
    whole: Model,
    cut: Model,
    pairs: Sequence[_FloatAndQuantized],
    sides: tuple[Mapping[str, Any], Mapping[str, Any]],
    feeds: Sequence[Feed],
    sums: Sums,
    threads: int,
) -> None:
    """Compare some nodes on all batches. `sides`: what is fed to readers, and the child's outputs."""
    exact, outs = sides
    alone = _Network([pair.out for pair in pairs], cut, threads)
    by_parameter = {node.get_friendly_name(): name for name, node in exact.items()}
    reads = [by_parameter[name] for name in alone.parameters if name in by_parameter]
    names = list(dict.fromkeys([*(pair.name for pair in pairs), *reads]))
    sources = {pair.name: pair.floats for pair in _everything(floats, names)}
    plain = _Network([sources[name] for name in names], floats, threads)
    run = _Network([outs[pair.name] for pair in pairs], whole, threads)
    for feed in feeds:
        first = dict(zip(names, plain.run(feed), strict=True))
        replaced = {exact[name].get_friendly_name(): first[name] for name in reads}
        outputs, own = run.run(feed), alone.run(feed, replaced)
        for pair, reference, candidate in zip(pairs, outputs, own, strict=True):
            if sums.fits(pair.name, first[pair.name], reference):
                sums.add(pair.name, first[pair.name], reference, candidate, _bounds(pair))


def _pairs(floats: Model, child: Model) -> list[_FloatAndQuantized]:
    """Outputs of nodes that depend on an input, in the child's order."""
    ours = {pair.name: pair for pair in _everything(floats)}
    pairs = []
    for name, port in _outputs(child):
        if name in ours and port.get_element_type().is_real():
            readers = [x.get_node() for x in port.get_target_inputs() if x.get_index() == 0]
            chain = tuple(x for x in readers if x.get_type_name() == "FakeQuantize")
            pairs.append(_FloatAndQuantized(name, ours[name].floats, port, chain, _behind(chain)))
    return pairs


def _behind(chain: Sequence[Any]) -> tuple[str, ...]:
    """Names of the layers that read what FakeQuantize gives, at once or past what moves values."""
    names, ahead = dict[str, None](), list(chain)
    for node in ahead:  # which grows
        for port in node.outputs():
            for reader in (each.get_node() for each in port.get_target_inputs()):
                name, kind = reader.get_friendly_name(), reader.get_type_name()
                if name not in names and kind != "Result":
                    names[name] = None
                    ahead += [reader] if kind in openvino_format.MOVES_VALUES else []
    return tuple(names)


def _everything(model: Model, names: Sequence[str] | None = None) -> list[_FloatAndQuantized]:
    return [
        _FloatAndQuantized(name, port, port, ())
        for name, port in _outputs(model)
        if port.get_element_type().is_real() and (names is None or name in names)
    ]


def _outputs(model: Model) -> Iterator[tuple[str, Any]]:
    """Outputs that depend on an input of the model, by the node's name and the output's number."""
    dynamic: set[str] = set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        before = (each.get_node().get_friendly_name() for each in node.input_values())
        if kind != "Parameter" and not dynamic.intersection(before):
            continue
        dynamic.add(name)
        if kind in ("Result", "FakeQuantize"):
            continue
        ports = node.outputs()
        for number, port in enumerate(ports):
            yield (f"{name}.{number}" if len(ports) > 1 else name), port


def _fed(child: Model, pair: _FloatAndQuantized) -> Any:
    """Let all readers of a pair read a new input instead; its node and FakeQuantize stay."""
    from openvino import opset13

    port = pair.root
    parameter = opset13.parameter(
        port.get_partial_shape(), port.get_element_type(), f"{pair.name}__exact"
    )
    chain = {node.get_friendly_name() for node in pair.chain}
    for reader in [*port.get_target_inputs()]:
        if reader.get_node().get_friendly_name() not in chain:
            reader.replace_source_output(parameter.output(0))
    for node in pair.chain:
        for reader in [*node.output(0).get_target_inputs()]:
            reader.replace_source_output(parameter.output(0))
    return parameter


class _Network:
    """Some outputs of a graph, compiled in fp32. `parameters` are the names of what it reads."""

    def __init__(self, outputs: Sequence[Any], model: Model, threads: int) -> None:
        import openvino

        self._names = openvino_format.input_names(model)
        inputs = {x.get_friendly_name(): x for x in model.get_parameters()}
        self._inputs = dict(zip(inputs, self._names, strict=True))
        parameters = _reached(outputs)
        self.parameters = tuple(parameters)
        network = openvino.Model(
            [openvino.opset13.result(port) for port in outputs], list(parameters.values()), "layers"
        )
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        self._compiled = openvino_format.core().compile_model(network, "CPU", settings)

    def run(self, feed: Feed, replaced: Feed | None = None) -> list[np.ndarray]:
        """Arrays in the outputs' order. `replaced` are values of the parameters put in, by name."""
        named = feed
        if not set(self._names) <= set(feed):
            named = dict(zip(self._names, feed.values(), strict=True))
        values = []
        for name, port in zip(self.parameters, self._compiled.inputs, strict=True):
            array = (replaced or {}).get(name)
            array = named[self._inputs[name]] if array is None else array
            values.append(array.astype(port.get_element_type().to_dtype(), copy=False))
        results = self._compiled(values)
        return [results[index].copy() for index in range(len(self._compiled.outputs))]


def _reached(outputs: Sequence[Any]) -> dict[str, Any]:
    """The inputs that outputs depend on."""
    parameters, seen = {}, set[str]()
    ahead = [port.get_node() for port in outputs]
    for node in ahead:  # which grows
        name = node.get_friendly_name()
        if name in seen:
            continue
        seen.add(name)
        if node.get_type_name() == "Parameter":
            parameters[name] = node
        ahead += [each.get_node() for each in node.input_values()]
    return parameters


def _bounds(pair: _FloatAndQuantized) -> tuple[float, float] | None:
    """The values that FakeQuantize lets through, a step wider."""
    if not pair.chain:
        return None
    low, high = (values_of(pair.chain[-1].input_value(index)) for index in (3, 4))
    if low is None or high is None:
        return None
    step = float((high.max() - low.min()) / 255)
    return float(low.min()) - step, float(high.max()) + step


def _error(pair: _FloatAndQuantized, sums: Sums) -> LayerError:
    """The row of a pair."""
    node = pair.floats.get_node()
    kind = node.get_type_name()
    if kind == "Parameter":
        return sums.error(pair.name, "", "input")
    row = sums.error(pair.name, node.get_friendly_name(), kind)
    return row.model_copy(update={"readers": pair.readers})


def _weights(pairs: Sequence[_FloatAndQuantized]) -> Iterator[LayerError]:
    for pair in pairs:
        node, child_node = pair.floats.get_node(), pair.root.get_node()
        kind = node.get_type_name()
        if kind in openvino_format.PRODUCTS and child_node.get_type_name() == kind:
            exact, quantized = (
                values_of(node.input_value(1)),
                values_of(child_node.input_value(1)),
            )
            name = node.input_value(1).get_node().get_friendly_name()
            yield from weight_errors(name, node.get_friendly_name(), kind, exact, quantized)
