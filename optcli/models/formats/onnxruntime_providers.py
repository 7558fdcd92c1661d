"""ONNX Runtime's execution providers: what they are called, which options they know, why one fails.

Option names are those of ONNX Runtime 1.31 (the strings in its provider libraries) and, of plug-ins, of
`tensorrt_rtx_provider_options.h` in onnxruntime-ep-nv-tensorrt-rtx 0.5.0 and of the documents of
onnxruntime-qnn 2 and onnxruntime-ep-webgpu 0.4.
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

Name = Literal["cpu", "cuda", "tensorrt", "tensorrt_rtx", "openvino", "qnn", "webgpu", "mlx"]


@dataclass(frozen=True)
class Provider:
    """One provider: ONNX Runtime's name for it, and what it takes.

    `device` is `cuda` where tensors can be bound there. `plugin` is the package that brings it where
    ONNX Runtime itself does not. `options` are the keys that it knows, `graphs` the one that turns on
    CUDA graphs, `stream` those that give it a stream of the caller's, `behind` what runs the operators
    that it leaves. `built_in`: some builds of ONNX Runtime have it without the plug-in.
    """

    name: str
    device: Literal["cpu", "cuda"] = "cpu"
    plugin: str = ""
    options: tuple[str, ...] = ()
    graphs: str = ""
    stream: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    install: str = ""
    built_in: bool = False


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
    built_in=True,
)  # fmt: skip
_QNN = Provider(
    "QNNExecutionProvider",
    plugin="onnxruntime_qnn",
    options=(
        "backend_type", "backend_path", "profiling_level", "profiling_file_path",
        "rpc_control_latency", "vtcm_mb", "enable_vtcm_backup_buffer_sharing", "htp_performance_mode",
        "qnn_saver_path", "qnn_context_priority", "htp_graph_finalization_optimization_mode",
        "soc_model", "htp_arch", "device_id", "enable_htp_fp16_precision",
        "enable_htp_spill_fill_buffer", "offload_graph_io_quantization",
        "enable_block_quant_weight_optimization", "enable_htp_shared_memory_allocator",
        "extended_udma", "op_packages", "dump_json_qnn_graph", "json_qnn_graph_dir",
        "dump_qnn_ir_dlc", "dump_qnn_ir_dlc_dir", "enable_framework_op_trace",
        "framework_op_trace_dir", "qnn_ir_backend_path", "skip_qnn_version_check",
        "num_graph_prepare_threads", "htp_share_resource_optimization", "disable_file_mapped_weights",
        "htp_bf16_enable", "enable_htp_prepare_only",
    ),
    install="pip install --no-deps onnxruntime-qnn; on x86 `backend_type: htp` simulates the NPU",
)  # fmt: skip
_WEBGPU = Provider(
    "WebGpuExecutionProvider",
    plugin="onnxruntime_ep_webgpu",
    options=(
        "preferredLayout", "enableGraphCapture", "enableInt64", "multiRotaryCacheConcatOffset",
        "forceCpuNodeNames", "enablePIXCapture", "deviceId", "powerPreference", "preserveDevice",
        "validationMode", "maxStorageBufferBindingSize", "storageBufferCacheMode",
        "uniformBufferCacheMode", "queryResolveBufferCacheMode", "defaultBufferCacheMode",
    ),
    install="pip install onnxruntime-ep-webgpu, on a machine with a GPU and a driver of Vulkan, "
    "Direct3D 12 or Metal",
)  # fmt: skip
_MLX = Provider(
    "MLXExecutionProvider",
    plugin="onnxruntime_ep_mlx",
    install="pip install onnxruntime-ep-mlx, on a Mac with a processor of Apple",
)
PROVIDERS: dict[Name, Provider] = {
    "cpu": Provider("CPUExecutionProvider", options=("use_arena",)),
    "cuda": _CUDA,
    "tensorrt": _TENSORRT,
    "tensorrt_rtx": _RTX,
    "openvino": _OPENVINO,
    "qnn": _QNN,
    "webgpu": _WEBGPU,
    "mlx": _MLX,
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


def is_plugin(provider: Provider) -> bool:
    """Whether a package of its own brings it; else ONNX Runtime has it, or nobody does."""
    import onnxruntime

    if not provider.plugin:
        return False
    # What is registered counts as available from then on.
    registered = any(each.ep_name == provider.name for each in _seen())
    return registered or provider.name not in onnxruntime.get_available_providers()


def _seen() -> list[Any]:
    """What ONNX Runtime sees to run on; nothing where it is too old for plug-ins."""
    import onnxruntime

    return list(onnxruntime.get_ep_devices()) if hasattr(onnxruntime, "get_ep_devices") else []


def plugin_devices(provider: Provider) -> list[Any]:
    """What the plug-in offers to run on. Raises what it says where it cannot be registered."""
    import onnxruntime

    def offered() -> list[Any]:
        return [each for each in _seen() if each.ep_name == provider.name]

    if not (devices := offered()):
        path = importlib.import_module(provider.plugin).get_library_path()
        # Some plug-ins call themselves what they are registered as.
        onnxruntime.register_execution_provider_library(provider.name, path)
        devices = offered()
    return devices
