"""Olive's own search over ONNX Runtime's quantization, for `benchmarks/tune_peers.py`.

    VENV/bin/python benchmarks/olive/search.py TOLD.json

TOLD.json says the ONNX file with any batch size, the number of classes, the folder with the files
`calibration.npy`, `validation.npy` and their `-targets.npy`, minutes, seed, the largest loss, threads.
Olive chooses by the validation samples, as optcli's search does. It searches its quantization pass,
static and dynamic, with all values that Olive itself names. The last line printed is JSON: the path of
what it chose, which one that is, and how many models are in its answer; null for the path where no
model is in it.
"""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import torch
from olive import workflows
from olive.data.registry import Registry


class Samples(torch.utils.data.Dataset):
    """Rows of an .npy, and their labels where there are any."""

    def __init__(self, folder, part):
        self.rows = np.load(Path(folder) / f"{part}.npy", mmap_mode="r")
        self.targets = np.load(Path(folder) / f"{part}-targets.npy")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"x": torch.from_numpy(np.array(self.rows[index]))}, int(self.targets[index])


@Registry.register_dataset()
def tune_samples(data_dir=None, folder=None, part=None, **_):
    """Known to Olive by this name."""
    return Samples(folder, part)


@Registry.register_post_process()
def largest(outputs):
    """The class of each sample."""
    return outputs.argmax(dim=-1)


def config(told):
    """What Olive is told."""

    def samples(part, **more):
        return {
            "name": part,
            "type": "DataContainer",
            "load_dataset_config": {
                "type": "tune_samples",
                "params": {"folder": told["work"], "part": part},
            },
            "dataloader_config": {"batch_size": 1},
            **more,
        }

    inference = {"onnx": {"session_options": {"intra_op_num_threads": told["threads"]}}}
    lost = {"type": "max-degradation", "value": told["max_drop"]}
    return {
        "input_model": {
            "type": "OnnxModel",
            "model_path": told["model"],
            "inference_settings": inference["onnx"],
        },
        "systems": {
            "here": {
                "type": "LocalSystem",
                "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}],
            }
        },
        "data_configs": [
            samples("calibration"),
            samples("validation", post_process_data_config={"type": "largest"}),
        ],
        "evaluators": {
            "both": {
                "metrics": [
                    {
                        "name": "accuracy",
                        "type": "accuracy",
                        "data_config": "validation",
                        "user_config": {"inference_settings": inference},
                        "sub_types": [
                            {
                                "name": "accuracy_score",
                                "priority": 2,
                                "metric_config": {"task": "multiclass", "num_classes": told["classes"]},
                                "goal": lost,
                            }
                        ],
                    },
                    {
                        "name": "latency",
                        "type": "latency",
                        "data_config": "validation",
                        "user_config": {"inference_settings": inference},
                        "sub_types": [{"name": "avg", "priority": 1}],
                    },
                ]
            }
        },
        "passes": {
            "quantization": {
                "type": "OnnxQuantization",
                "data_config": "calibration",
                "quant_mode": "SEARCHABLE_VALUES",
                "precision": "SEARCHABLE_VALUES",
                "per_channel": "SEARCHABLE_VALUES",
                "reduce_range": "SEARCHABLE_VALUES",
                "quant_preprocess": "SEARCHABLE_VALUES",
                "calibrate_method": "SEARCHABLE_VALUES",
                "quant_format": "SEARCHABLE_VALUES",
                "activation_type": "SEARCHABLE_VALUES",
            }
        },
        "search_strategy": {
            "execution_order": "joint",
            "sampler": "tpe",
            "sampler_config": {"seed": told["seed"]},
            "max_time": round(60 * told["minutes"]),
        },
        "host": "here",
        "target": "here",
        "evaluator": "both",
        "evaluate_input_model": True,
        "cache_dir": str(Path(told["out"]) / "cache"),
        "output_dir": str(Path(told["out"]) / "found"),
        "log_severity_level": 1,
    }


def main():
    """Search, and say what was chosen."""
    told = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(stream=sys.stderr)
    torch.set_num_threads(told["threads"])
    said = sys.stdout
    sys.stdout = sys.stderr
    found = workflows.run(config(told))
    best = found.get_best_candidate() if found is not None and found.has_output_model() else None
    answer = {"path": None, "chosen": None, "models": 0}
    if best is not None:
        answer = {
            "path": str(best.model_path),
            "chosen": best.model_id,
            "models": len(found.get_output_models()),
            "metrics": best.metrics_value,
        }
    print("\n" + json.dumps(answer, default=str), file=said)


main()
