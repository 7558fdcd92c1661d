"""ExecuTorch: PyTorch's own runtime for phones, boards and microcontrollers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import executorch as executorch_format
from optcli.models.formats import exported as exported_format
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import by_layer, module_of, network
from optcli.passes._torch.tracing import IMPORTS_AHEAD, flat, trace

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

# What only hands values on, and is no operator of the network.
_NO_WORK = ("getitem", "executorch_call_delegate", "aten.sym_size.int")


class ToExecutorch(Pass):
    """Lowers a PyTorch network to an ExecuTorch program (`.pte`) for ARM and x86 CPUs.

    XNNPACK computes what it can. The fact `outside_the_backend` names the operators that it does not,
    with the modules of the network that they belong to. Sizes that the recipe writes as symbols stay
    dynamic up to their `max`, for which the program plans its memory. For INT8 put `quantize_pt2e` with
    `quantizer: xnnpack` before this pass.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "executorch"))
    tolerance: ClassVar[float | None] = 1e-3
    computes_on_one_core: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD

    backend: Literal["xnnpack", "portable"] = Field(
        "xnnpack",
        description="what computes the network: XNNPACK, or ExecuTorch's own plain kernels alone",
    )

    def produces(self, source: Format) -> Format:
        return Format.EXECUTORCH

    def run(self, source: Artifact, job: Job) -> Made:
        if source.facts.get("quantizer", "xnnpack") != "xnnpack":
            raise StepError(
                f"the network is quantized for the {source.facts['quantizer']} kernels of Inductor, and"
                " ExecuTorch has none of them",
                hint="set `quantizer: xnnpack` in quantize_pt2e",
            )
        if source.format == Format.EXPORTED:
            program = exported_format.open(source.path, trust=source.trusted)
        else:
            hint = "put `export: {strict: true}` before this pass, or look into the log"
            with raised_as(StepError, "torch.export failed", hint=hint):
                program = trace(flat(network(source), job.inputs), job, strict=False)
        hint = "the log names the operator; `backend: portable` shows whether XNNPACK is what fails"
        with by_layer("ExecuTorch cannot lower the network", lambda: program, hint):
            lowered = self._lowered(program)
            _keep_bounds(lowered, program)
            facts = _account(lowered)
            content = lowered.to_executorch().buffer
        if self.backend != "portable" and not facts["delegates"]:
            job.warn(f"{self.backend} computes no part of this network: plain kernels do, slowly")
        (job.out / executorch_format.FILE).write_bytes(content)
        return Made(facts={"backend": self.backend, **facts})

    def _lowered(self, program: ExportedProgram) -> EdgeProgramManager:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        partitioners = []
        if self.backend == "xnnpack":
            partitioners = [XnnpackPartitioner()]
            _protect_row_softmax(program.graph_module)
        return to_edge_transform_and_lower(program, partitioner=partitioners)


def _protect_row_softmax(module: torch.fx.GraphModule) -> None:
    """Give images of which a softmax is taken by rows a fifth dimension meanwhile.

    XNNPACK keeps what comes from a convolution with its channels last, and ExecuTorch 1.5 does not tell
    its softmax: it was taken over the channels. Other operators of that kind were right.
    """
    import torch

    aten = torch.ops.aten
    for node in list(module.graph.nodes):
        if node.target not in (aten.softmax.int, aten._softmax.default):
            continue
        if not _is_image_of_convolution(node.args[0]):
            continue
        image, dim, *others = node.args
        with module.graph.inserting_before(node):
            wider = module.graph.call_function(aten.unsqueeze.default, (image, 0))
        with module.graph.inserting_after(node):
            result = module.graph.call_function(aten.squeeze.dim, (node, 0))
        node.replace_all_uses_with(result, delete_user_cb=lambda user, own=result: user is not own)
        node.args = (wider, dim if dim < 0 else dim + 1, *others)
        for new, value in ((wider, image.meta["val"]), (result, node.meta["val"])):
            new.meta = {**node.meta, "val": value}
        wider.meta["val"], node.meta["val"] = (
            each.unsqueeze(0) for each in (image.meta["val"], node.meta["val"])
        )
    module.recompile()


def _is_image_of_convolution(node: torch.fx.Node) -> bool:
    """Whether a tensor of four dimensions comes from a convolution by such tensors alone."""
    waiting, seen = [node], set()
    while waiting:
        each = waiting.pop()
        value = each.meta.get("val")
        if each in seen or getattr(value, "ndim", 0) != 4:
            continue
        if "conv" in str(each.target):
            return True
        seen.add(each)
        waiting += each.all_input_nodes
    return False


def _keep_bounds(lowered: EdgeProgramManager, program: ExportedProgram) -> None:
    """Give symbols the ranges of the program again, by which the memory of the result is planned.

    Lowering traces the network anew: with torch 2.15 every symbol then reaches to 15, whatever its
    range.
    """
    sizes = zip(_input_sizes(program), _input_sizes(lowered.exported_program()), strict=True)
    for size, lowered_size in sizes:
        symbols = zip(size.node.expr.free_symbols, lowered_size.node.expr.free_symbols, strict=True)
        for symbol, lowered_symbol in symbols:
            span = program.range_constraints[symbol]
            lowered_size.node.shape_env.var_to_range[lowered_symbol] = span


def _input_sizes(program: ExportedProgram) -> list[torch.SymInt]:
    """The sizes of inputs that vary, in the order of the inputs."""
    import torch

    names = program.graph_signature.user_inputs
    values = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [size for each in tensors for size in each.shape if isinstance(size, torch.SymInt)]


def _account(lowered: EdgeProgramManager) -> dict[str, Any]:
    """How many parts went to a backend, and which operators of which modules did not."""
    delegates, outside = 0, defaultdict(set)
    for node in lowered.exported_program().graph.nodes:
        if node.op != "call_function":
            continue
        name = _name(node.target)
        delegates += name == "executorch_call_delegate"
        if name not in _NO_WORK:
            outside[name].add(module_of(node))
    named = {name: sorted(modules) for name, modules in sorted(outside.items())}
    return {"delegates": delegates, "outside_the_backend": named}


def _name(target: Any) -> str:
    """An operator as PyTorch names it: `aten.view_copy.default`."""
    return str(target.name()).replace("::", ".") if hasattr(target, "_op") else _plain(target)


def _plain(target: Any) -> str:
    return str(getattr(target, "__name__", target))
