"""What `sweep_passes.py` tries: chains of passes and options of runners, each with its bar in dB.

What comes before the last pass of a chain brings the model into the format that the last one reads. A
bar of None: the pass changes the network on purpose.
"""

from __future__ import annotations

from typing import Any

LOSSLESS, FP16, BF16, INT8, WEIGHTS8, WEIGHTS4, ANY = 60.0, 40.0, 20.0, 15.0, 25.0, 8.0, None

Entry = str | dict[str, Any]
FROM_TORCH: list[tuple[list[Entry], float | None]] = [
    ([], LOSSLESS),
    (["export"], LOSSLESS),
    (["channels_last"], LOSSLESS),
    (["torchscript"], LOSSLESS),
    ([{"torchscript": {"method": "script"}}], LOSSLESS),
    ([{"torchscript": {"optimize_for_inference": True}}], LOSSLESS),
    (["channels_last", "torchscript"], LOSSLESS),
    (["export_onnx"], LOSSLESS),
    ([{"export_onnx": {"exporter": "torchscript"}}], LOSSLESS),
    (["export", "export_onnx"], LOSSLESS),
    (["export", "to_openvino"], LOSSLESS),
    (["quantize_dynamic"], WEIGHTS8),
    ([{"quantize_dynamic": {"engine": "eager"}}], INT8),
    (["weights_only"], WEIGHTS8),
    (["prune"], ANY),
    ([{"prune": {"importance": "taylor", "global_ranking": True}}], ANY),
    ([{"prune": {"importance": "batchnorm"}}], ANY),
    (["prune", "export_onnx"], LOSSLESS),
    (["sparsify"], ANY),
    ([{"sparsify": {"pattern": "2:4"}}], ANY),
    ([{"finetune": {"epochs": 1}}], ANY),
    ([{"finetune": {"epochs": 0, "reestimate_batchnorm": True}}], ANY),
    (["prune", {"finetune": {"epochs": 1}}], ANY),
    (["quantize_pt2e"], INT8),
    (["export", "quantize_pt2e"], INT8),
    ([{"quantize_pt2e": {"dynamic": True}}], INT8),
    (["quantize_nncf"], INT8),
    (["export", "quantize_nncf"], INT8),
]
FROM_ONNX: list[tuple[list[Entry], float | None]] = [
    (["to_openvino"], LOSSLESS),
    (["optimize_onnx"], LOSSLESS),
    ([{"optimize_onnx": {"to": "ort"}}], LOSSLESS),
    (["convert_precision"], FP16),
    ([{"convert_precision": {"keep_io": False}}], FP16),
    ([{"convert_precision": {"precision": "bf16"}}], BF16),
    (["convert_precision", "to_openvino"], FP16),
    (["quantize_nncf"], INT8),
    ([{"quantize_nncf": {"preset": "mixed"}}], INT8),
    (["to_openvino", "quantize_nncf"], INT8),
    (["quantize_onnxruntime"], INT8),
    ([{"quantize_onnxruntime": {"method": "percentile"}}], INT8),
    ([{"quantize_onnxruntime": {"method": "entropy"}}], INT8),
    ([{"quantize_onnxruntime": {"format": "qoperator"}}], INT8),
    (["quantize_onnxruntime", "to_openvino"], INT8),
    (["quantize_onnxruntime", {"optimize_onnx": {"to": "ort"}}], INT8),
    (["quantize_dynamic"], INT8),
    ([{"quantize_dynamic": {"types": ["MatMul", "Conv"]}}], INT8),
    (["weights_only"], WEIGHTS8),
    ([{"weights_only": {"symmetric": False}}], WEIGHTS8),
    ([{"weights_only": {"bits": 4}}], WEIGHTS4),
    (["to_openvino", "weights_only"], WEIGHTS8),
    (["to_openvino", {"weights_only": {"bits": 4, "symmetric": False}}], WEIGHTS4),
]
# Slow to make: each is compiled, for every batch size or range of them.
COMPILED: list[tuple[list[Entry], float | None]] = [
    ([], LOSSLESS),
    (["export"], LOSSLESS),
    (["aot_inductor"], LOSSLESS),
    (["export", "aot_inductor"], LOSSLESS),
    (["quantize_pt2e", "aot_inductor"], INT8),
    ([{"quantize_pt2e": {"dynamic": True}}, "aot_inductor"], INT8),
    (["quantize_nncf", "aot_inductor"], INT8),
    (["torch_compile"], LOSSLESS),
    ([{"torch_compile": {"dynamic": False, "freezing": False}}], LOSSLESS),
    ([{"torch_compile": {"channels_last": True, "autocast": "bf16"}}], BF16),
    (["quantize_dynamic", "torch_compile"], WEIGHTS8),
    (["weights_only", "torch_compile"], LOSSLESS),
    (["weights_only", "aot_inductor"], LOSSLESS),
]
# The options of runners, tried on artifacts that no pass has changed but for their format.
OPTIONS: dict[str, list[tuple[dict[str, Any], float]]] = {
    "torch": [({"channels_last": True}, LOSSLESS), ({"autocast": "bf16"}, BF16),
              ({"autocast": "fp16"}, FP16)],
    "onnxruntime": [({"optimization_level": level}, LOSSLESS) for level in ("disabled", "extended")],
    "openvino": [({"hint": "throughput", "streams": 2}, LOSSLESS), ({"precision": "bf16"}, BF16)],
}  # fmt: skip
PLAIN = ("", "export", "export_onnx", "to_openvino", "export_onnx > to_openvino")
