"""ONNX Runtime's execution providers: what they are called, which options they know, why one fails.

Option names are those of ONNX Runtime 1.31 (the strings in its provider libraries) and, of the plug-in,
of `tensorrt_rtx_provider_options.h` in onnxruntime-ep-nv-tensorrt-rtx 0.5.0.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from optcli.errors import first_line

Name = Literal["cpu", "cuda", "tensorrt", "tensorrt_rtx", "openvino"]


@dataclass(frozen=True)
class Provider:
    """One provider: ONNX Runtime's name for it, and what it takes.

    `device` is `cuda` where tensors can be bound there. `plugin` is the package that brings it where
    ONNX Runtime itself does not. `options` are the keys that it knows, `graphs` the one that turns on
    CUDA graphs, `stream` those that give it a stream of the caller's, `behind` what runs the operators
    that it leaves.
    """

    name: str
    device: Literal["cpu", "cuda"] = "cpu"
    plugin: str = ""
    options: tuple[str, ...] = ()
    graphs: str = ""
    stream: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    install: str = ""


_CUDA = Provider(
    "CUDAExecutionProvider",
    device="cuda",
    options=(
        "device_id", "gpu_mem_limit", "arena_extend_strategy", "gpu_external_alloc",
        "gpu_external_free", "gpu_external_empty_cache", "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "do_copy_in_default_stream",
        "enable_cuda_graph", "enable_skip_layer_norm_strict_mode", "use_tf32", "fuse_conv_bias",
        "prefer_nhwc", "sdpa_kernel", "use_ep_level_unified_stream", "tunable_op_enable",
        "tunable_op_tuning_enable", "tunable_op_max_tuning_duration_ms",
    ),
    graphs="enable_cuda_graph",
    stream=("user_compute_stream",),
    install="pip install 'onnxruntime-gpu[cuda,cudnn]', which brings the libraries it wants",
)  # fmt: skip
_TENSORRT = Provider(
    "TensorrtExecutionProvider",
    device="cuda",
    options=(
        "device_id", "trt_auxiliary_streams", "trt_bf16_enable", "trt_build_heuristics_enable",
        "trt_builder_optimization_level", "trt_context_memory_sharing_enable", "trt_cuda_graph_enable",
        "trt_detailed_build_log", "trt_dla_core", "trt_dla_enable", "trt_dump_ep_context_model",
        "trt_dump_subgraphs", "trt_engine_cache_enable", "trt_engine_cache_path",
        "trt_engine_cache_prefix", "trt_engine_hw_compatible", "trt_ep_context_embed_mode",
        "trt_ep_context_file_path", "trt_extra_plugin_lib_paths", "trt_force_sequential_engine_build",
        "trt_force_timing_cache", "trt_fp16_enable", "trt_int8_calibration_table_name",
        "trt_int8_enable", "trt_int8_use_native_calibration_table", "trt_layer_norm_fp32_fallback",
        "trt_load_user_initializer", "trt_max_partition_iterations", "trt_max_workspace_size",
        "trt_min_subgraph_size", "trt_op_types_to_exclude", "trt_preview_features",
        "trt_profile_max_shapes", "trt_profile_min_shapes", "trt_profile_opt_shapes",
        "trt_sparsity_enable", "trt_tactic_sources", "trt_timing_cache_enable",
        "trt_timing_cache_path", "trt_weight_stripped_engine_enable",
    ),
    graphs="trt_cuda_graph_enable",
    stream=("user_compute_stream",),
    behind=("CUDAExecutionProvider",),
    install="put TensorRT 10's libraries (libnvinfer.so.10) on LD_LIBRARY_PATH, or build an engine of "
    "its own with the pass tensorrt_engine",
)  # fmt: skip
_RTX = Provider(
    "NvTensorRTRTXExecutionProvider",
    device="cuda",
    plugin="onnxruntime_ep_nv_tensorrt_rtx",
    options=(
        "enable_cuda_graph", "nv_detailed_build_log", "nv_dump_subgraphs", "nv_enable_profiling",
        "nv_hardware_device_id", "nv_max_shared_mem_size", "nv_max_workspace_size",
        "nv_multi_profile_enable", "nv_multi_rotary_cache_concat_offset", "nv_op_types_to_exclude",
        "nv_persistent_context_memory", "nv_profile_index", "nv_profile_max_shapes",
        "nv_profile_min_shapes", "nv_profile_opt_shapes", "nv_profiling_output_file",
        "nv_runtime_cache_path", "nv_target_sm", "nv_use_external_data_initializer",
        "nv_use_sync_gpu_allocator", "nv_weight_streaming_budget",
        "nv_weight_stripped_engine_enable_experimental",
    ),
    graphs="enable_cuda_graph",
    stream=("has_user_compute_stream", "user_compute_stream"),
    install="pip install onnxruntime-ep-nv-tensorrt-rtx-cu13",
)  # fmt: skip
_OPENVINO = Provider(
    "OpenVINOExecutionProvider",
    plugin="onnxruntime_ep_openvino",
    options=(
        "device_type", "precision", "num_of_threads", "num_streams", "cache_dir", "load_config",
        "model_priority", "enable_qdq_optimizer", "disable_dynamic_shapes", "reshape_input", "layout",
        "enable_opencl_throttling", "enable_causallm", "context",
    ),
    install="pip install onnxruntime-ep-openvino, or `runner: openvino` after the pass to_openvino",
)  # fmt: skip
PROVIDERS: dict[Name, Provider] = {
    "cpu": Provider("CPUExecutionProvider", options=("use_arena",)),
    "cuda": _CUDA,
    "tensorrt": _TENSORRT,
    "tensorrt_rtx": _RTX,
    "openvino": _OPENVINO,
}


def preload() -> str:
    """Load CUDA's libraries from where pip has put them, since no linker looks there.

    Gives what ONNX Runtime says of those it does not find; empty where all is well.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "preload_dlls"):
        return ""
    output = StringIO()
    with redirect_stdout(output):  # it prints
        onnxruntime.preload_dlls()
    return output.getvalue().strip().partition("\n")[0]


def library_reason(provider: str) -> str:
    """Why the library of a provider does not load, in the words of the dynamic linker; else nothing.

    `provider` as ONNX Runtime calls it.
    """
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return ""
    kind = provider.removesuffix("ExecutionProvider").lower()
    library = Path(spec.origin).parent / "capi" / f"libonnxruntime_providers_{kind}.so"
    if not library.is_file():
        return ""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        reason = first_line(error)
        # A symbol of ONNX Runtime itself is resolved only when it loads the library.
        return "" if "undefined symbol" in reason else reason
    return ""


def plugin_devices(provider: Provider) -> list[Any]:
    """What the plug-in offers to run on. Raises what it says where it cannot be registered."""
    import onnxruntime

    def offered() -> list[Any]:
        return [each for each in onnxruntime.get_ep_devices() if each.ep_name == provider.name]

    if not (devices := offered()):
        path = importlib.import_module(provider.plugin).get_library_path()
        onnxruntime.register_execution_provider_library(provider.plugin, path)
        devices = offered()
    return devices
