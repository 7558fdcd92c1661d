# ruff: noqa: E501  (one mistake, one row)
"""Recipes as people get them wrong: each gives one problem, at its line, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from optcli.errors import ExitCode, RecipeError
from optcli.recipe import Recipe

Loaded = Callable[..., Recipe]


@dataclass(frozen=True)
class Broken:
    """The good recipe with one edit; the line of the problem and what it says."""

    name: str
    old: str
    new: str
    line: int
    message: str
    hint: str


INPUT = "  - {name: image, dtype: float32, shape: [batch, 1, 8, 8], batch: {min: 1, opt: 8, max: 64}}"
SIZE = "\n  - {{name: size, dtype: int64, shape: [batch, 2], batch: {{min: 1, opt: 8, max: 64}}, value: {}}}"
CALIBRATION = "\ndata:\n  calibration: {source: npz:digits.npz, split: calibration, samples: 16}"
EVALUATION = "  evaluation:\n    source: npz:digits.npz\n    split: evaluation\n"

TABLE = [
    # the header
    Broken("no names of classes", "baseline:", "class_names: []\nbaseline:", 16, "found an empty list", "text"),
    Broken("class is number", "baseline:", "class_names: [7, a]\nbaseline:", 16, "class_names[0]: found 7", "quotes"),
    Broken("no file of names", "baseline:", "class_names: no.txt\nbaseline:", 16, "class_names: no such file: no.txt", "one name a line"),
    Broken("no version", "version: 1\n", "", 1, "missing key 'version'", "version: 1"),
    Broken("new version", "version: 1", "version: 2", 1, "version: found 2, wanted 1", "reads version 1"),
    Broken("version text", "version: 1", "version: '1'", 1, "found '1', wanted 1", "version: 1"),
    Broken("no name", "name: digits\n", "", 1, "missing key 'name'", "name: NAME"),
    Broken("bad name", "name: digits", "name: my/digits", 2, "'my/digits'", "my-digits"),
    Broken("name is number", "name: digits", "name: 50", 2, "found 50 (a number), wanted text", "quotes"),
    Broken("letterbox of a number", "calibration, samples: 16}", "calibration, samples: 16, prepare: {letterbox: 640}}", 9, "prepare.letterbox: found 640, wanted a mapping", "write {size: 640}"),
    Broken("letterbox of two", "calibration, samples: 16}", "calibration, samples: 16, prepare: {letterbox: [640, 480]}}", 9, "prepare.letterbox: found a list, wanted a mapping", "write {size: [640, 480]}"),
    Broken("typo key", "latency:", "latenzy:", 14, "unknown key 'latenzy'", "'latency'"),
    Broken("misplaced", "baseline:", "batch_sizes: [1]\nbaseline:", 16, "'batch_sizes'", "latency.batch_sizes"),
    Broken("bad baseline", "baseline: eager", "baseline: eagr", 16, "no variant 'eagr'", "'eager'"),
    Broken("baseline is number", "baseline: eager", "baseline: 0", 16, "found 0 (a number), wanted text", "quotes"),
    Broken("negative seed", "baseline:", "seed: -1\nbaseline:", 16, "found -1, wanted at least 0", "raise"),
    Broken("no model", "model:\n  source: net:digits\n  weights: digits.safetensors\n", "", 1, "missing key 'model'", "source"),
    # the model
    Broken("no scheme", "net:digits", "resnet50", 4, "wanted KIND:WHAT", "torchvision:resnet50"),
    Broken("bad scheme", "net:digits", "onx:digits", 4, "unknown source 'onx'", "'onnx'"),
    Broken("no weights", "digits.safetensors", "gone.pth", 5, "no file gone.pth", "relative"),
    Broken("empty model", "model:\n  source: net:digits\n  weights: digits.safetensors\n", "model:\n", 3, "found nothing", "give it a value"),
    Broken("model text", "model:\n  source: net:digits\n  weights: digits.safetensors\n", "model: net:digits\n", 3, "wanted a mapping", "write {source: net:digits}"),
    Broken("model typo", "weights:", "weigths:", 5, "unknown key 'weigths' in model", "'weights'"),
    # the inputs
    Broken("dtype float", "dtype: float32", "dtype: float", 7, "found 'float', wanted", "'float32'"),
    Broken("shape none", "[batch, 1, 8, 8]", "[null, 1, 8, 8]", 7, "shape[0]: found nothing", "symbol such as batch"),
    Broken("shape -1", "[batch, 1, 8, 8]", "[-1, 1, 8, 8]", 7, "shape[0]: found -1", "symbol such as batch"),
    Broken("shape text", "[batch, 1, 8, 8]", "batch", 7, "shape: found 'batch', wanted a list", "[batch, 3"),
    Broken("shape quoted", "[batch, 1, 8, 8]", "[batch, '1', 8, 8]", 7, "shape[1]: found '1'", "size"),
    Broken("range typo", "batch: {min", "bacth: {min", 7, "unknown key 'bacth'", "'batch'"),
    Broken("range order", "opt: 8, max: 64", "opt: 80, max: 64", 7, "min <= opt <= max", "change"),
    Broken("range key", "opt: 8, max", "opts: 8, max", 7, "unknown key 'opts'", "'opt'"),
    Broken("range text", "min: 1, opt", "min: one, opt", 7, "batch.min: found 'one' (text)", "whole number"),
    Broken("inputs mapping", INPUT, "  image: [batch, 1, 8, 8]", 7, "inputs: found a mapping, wanted a list", "inputs: ["),
    Broken("no input name", "name: image, ", "", 7, "missing key 'name' in inputs[0]", "name"),
    Broken("same input", INPUT, INPUT + "\n" + INPUT, 8, "two inputs have the name 'image'", "own name"),
    Broken("other range", INPUT, INPUT + "\n  - {name: b, shape: [batch, 2], batch: {max: 9}}", 8, "1..8..9 here, but 1..8..64", "same range"),
    Broken("other batch", INPUT, INPUT + "\n  - {name: b, shape: [n, 2]}", 8, "'n' here, but 'batch'", "batch"),
    # inputs with a value; the data of the good recipe are prepared inputs
    Broken("value too short", INPUT, INPUT + SIZE.format("[640]"), 8, "found value [640] for the shape [batch, 2]", "change"),
    Broken("value no whole number", INPUT, INPUT + SIZE.format("[6.5, 2]"), 8, "numbers that int64 can hold", "change"),
    Broken("value typo", INPUT, INPUT + SIZE.format("originalsize"), 8, "inputs[1].value: found 'originalsize'", "'original_size'"),
    Broken("value of an image", "max: 64}}", "max: 64}, value: original_size}", 7, "original_size for the shape [batch, 1, 8, 8], wanted shape: [batch, 2]", "change"),
    Broken("value beside range", INPUT, INPUT + SIZE.format("[1, 2], range: [0, 9]"), 8, "range beside value", "change"),
    Broken("size of no image", INPUT, INPUT + SIZE.format("original_size"), 8, "data.calibration holds prepared inputs, no images", "declare `prepare`"),
    Broken("values alone", INPUT, SIZE.format("[1, 2]").strip("\n"), 7, "every input has a value", "leave out the value"),
    Broken("value without batch", INPUT, INPUT + "\n  - {name: size, shape: [1, 2], value: [1, 2]}", 8, "room for 1 of the up to 64 samples", "begin its shape with batch"),
    Broken("data feed a value", INPUT + CALIBRATION, INPUT + SIZE.format("[1, 2]") + CALIBRATION.replace("split", "input: size, split"), 10, "'size' has a value, and no data feed it", "image"),
    # data
    Broken("role typo", "  calibration:", "  calibraton:", 9, "unknown key 'calibraton' in data", "'calibration'"),
    Broken("negative samples", "samples: 16", "samples: -1", 9, "found -1, wanted at least 1", "raise"),
    Broken("samples text", "samples: 16", "samples: '16'", 9, "found '16' (text), wanted a whole number", "remove the quotes"),
    Broken("no data file", "    source: npz:digits.npz", "    source: npz:gone.npz", 11, "gone.npz", "relative"),
    Broken("data typo", "    split: evaluation", "    spilt: evaluation", 12, "unknown key 'spilt'", "'split'"),
    Broken("data kind", "    source: npz:", "    source: nzp:", 11, "'nzp'", "'npz'"),
    Broken("no evaluation", EVALUATION, "", 10, "data: evaluation", "add data"),
    Broken("no such input", "    split: evaluation", "    input: imge\n    split: evaluation", 12, "no input 'imge'", "'image'"),
    # settings
    Broken("percent", "max_drop: 0.01", "max_drop: 1%", 13, "found '1%' (text), wanted a number", "write 0.01"),
    Broken("drop of 5", "max_drop: 0.01", "max_drop: 5", 13, "wanted at most 1", "write 0.05"),
    Broken("comma", "max_drop: 0.01", "max_drop: '0,01'", 13, "wanted a number", "0.01 with a point"),
    Broken("unit", "p99_ms: 50", "p99_ms: 50ms", 15, "found '50ms'", "alone: 50"),
    Broken("seconds", "p99_ms: 50", "p99_ms: 0.05s", 15, "found '0.05s'", "alone: 50"),
    Broken("megabytes", "p99_ms: 50", "memory_bytes: 500 MB", 15, "found '500 MB'", "alone: 500000000"),
    Broken("mebibytes", "p99_ms: 50", "size_bytes: 1.5MiB", 15, "found '1.5MiB'", "alone: 1572864"),
    Broken("expected in percent", "max_drop: 0.01", "max_drop: 0.01, expected: 76", 13, "wanted at most 1", "write 0.76"),
    Broken("batch_size", "batch_sizes: [1, 8]", "batch_size: [1, 8]", 14, "'batch_size' in latency", "'batch_sizes'"),
    Broken("one batch size", "batch_sizes: [1, 8]", "batch_sizes: 8", 14, "wanted a list", "write [8]"),
    Broken("big batch", "batch_sizes: [1, 8]", "batch_sizes: [1, 128]", 14, "batch size 128", "range"),
    Broken("mode", "mode: quick", "mode: fast", 14, "found 'fast', wanted 'quick'", "quick"),
    Broken("threads true", "8], threads: 2", "8], threads: true", 14, "found true, wanted a whole number", "number"),
    Broken("empty slo", "slo: {p99_ms: 50, rate_per_s: 200}", "slo:", 15, "slo: found nothing", "remove the key"),
    # variants
    Broken("unknown pass", "onnx: [export_onnx]", "onnx: [export_onx]", 19, "unknown pass 'export_onx'", "'export_onnx'"),
    Broken("scalar variant", "onnx: [export_onnx]", "onnx: export_onnx", 19, "wanted a list of passes", "[export_onnx]"),
    Broken("null variant", "eager: []", "eager:", 18, "found nothing", "write []"),
    Broken("pass as key", "onnx: [export_onnx]", "onnx: {export_onnx: {}}", 19, "unknown key 'export_onnx'", "passes: [export_onnx]"),
    Broken("passes mapping", "passes: [export_onnx, to_openvino]", "passes: {export_onnx: {}, to_openvino: {}}", 27, "found a mapping", "[export_onnx, to_openvino]"),
    Broken("unknown option", "preset: mixed", "presset: mixed", 24, "unknown key 'presset' in quantize_nncf", "'preset'"),
    Broken("bad option", "preset: mixed", "preset: asymmetric", 24, "quantize_nncf.preset: found 'asymmetric'", "mixed"),
    Broken("other's option", "onnx: [export_onnx]", "onnx: [{export_onnx: {ratio: 0.5}}]", 19, "unknown key 'ratio' in export_onnx", "option of prune"),
    Broken("indentation", "          preset", "        preset", 24, "2 keys (quantize_nncf, preset)", "indent"),
    Broken("two passes", "onnx: [export_onnx]", "onnx: [{export_onnx: {opset: 18}, to_openvino: {}}]", 19, "2 keys", "dash"),
    Broken("options list", "      - quantize_nncf:\n          preset: mixed", "      - quantize_nncf: [mixed]", 23, "wanted a mapping of options", "OPTION: VALUE"),
    Broken("pass rule", "eager: []", "eager: [{prune: {low: 3}}]", 18, "wanted low <= high", "change"),
    Broken("formats", "onnx: [export_onnx]", "onnx: [export, quantize_nncf]", 19, "quantize_nncf reads onnx or openvino, but export (before it) makes exported", ""),
    Broken("first format", "onnx: [export_onnx]", "onnx: [to_openvino]", 19, "to_openvino reads onnx, but the model comes as torch", "put export_onnx before"),
    Broken("two between", "    passes: [export_onnx, to_openvino]", "    passes: []", 28, "runs openvino or onnx, but the passes make torch", "add export_onnx"),
    Broken("role", "onnx: [export_onnx]", "onnx: [prune, export_onnx]", 19, "prune needs data: training", "add data"),
    Broken("runner name", "name: openvino", "name: opnvino", 28, "unknown runner 'opnvino'", "'openvino'"),
    Broken("no runner name", "{name: openvino, threads: 2,", "{threads: 2,", 28, "missing key 'name' in runner", "openvino"),
    Broken("runner option", "hint: latency", "hint: fast", 28, "runner.hint: found 'fast'", "latency"),
    Broken("another case", "hint: latency", "hint: LATENCY", 28, "runner.hint: found 'LATENCY'", "mean 'latency'"),
    Broken("runner device", "hint: latency", "device: gpu", 28, "found 'gpu', wanted text such as CPU, GPU", "mean 'GPU'"),
    Broken("runner key", "hint: latency", "hnt: latency", 28, "unknown key 'hnt' in runner", "'hint'"),
    Broken("runner's key", "    gate: true", "    threads: 2", 25, "unknown key 'threads' in a variant", "runner: {threads"),
    Broken("gate text", "gate: true", "gate: 'yes'", 25, "found 'yes' (text), wanted true or false", "write true"),
    Broken("wrong runner", "    gate: true", "    runner: torch", 25, "the runner torch runs torch or exported", "onnxruntime"),
    Broken("unsafe name", "  onnx:", "  on/nx:", 19, "'on/nx'", "letters"),
    Broken("capitals", "  onnx:", "  Eager:", 19, "differ in capitals only", "rename"),
    Broken("no parent", "    gate: true", "    extends: onx", 25, "unknown variant 'onx'", "'onnx'"),
    Broken("itself", "    gate: true", "    extends: onnx-int8", 25, "in a circle", "break"),
    Broken("no plugin file", "baseline:", "plugins: [./gone.py:MyPass]\nbaseline:", 16, "gone.py", "relative"),
    Broken("no pass class", "onnx: [export_onnx]", "onnx: ['./mine.py:MyPas']", 19, "no 'MyPas'", "'MyPass'"),
    # YAML
    Broken("duplicate", "baseline: eager", "baseline: eager\nname: other", 17, "'name' is repeated (first in line 2)", "remove"),
    Broken("tab", "  weights", "\tweights", 5, "found a tab", "spaces"),
    Broken("colon", "name: digits", "name: my: digits", 2, "':' where no key can stand", "quotes"),
    Broken("open bracket", "[1, 8], threads: 2}", "[1, 8, threads: 2}", 14, "syntax", "close"),
    Broken("tag", "name: digits", "name: !!python/object:os.system x", 2, "!!python/object:os.system", "remove the tag"),
    Broken("tag of a mapping", "name: digits", "name: !!map [digits]", 2, "!!map", "remove the tag"),
    Broken("tag of a list", "name: digits", "name: !!seq {digits: 1}", 2, "!!seq", "remove the tag"),
    Broken("alias", "name: digits", "name: *digits", 2, "undefined alias", "define"),
    Broken("second document", "baseline: eager", "baseline: eager\n---\n", 17, "second document", "remove"),
    # the environment
    Broken("unset", "digits.safetensors", "${OPTCLI_UNSET}/x.pth", 5, "OPTCLI_UNSET is not set", ":-value"),
    Broken("unset in shape", "threads: 2}", "threads: '${OPTCLI_UNSET}'}", 14, "OPTCLI_UNSET", ":-value"),
    Broken("odd placeholder", "digits.safetensors", "${a b}.pth", 5, "wanted ${NAME}", "$$"),
    Broken("unquoted", "threads: 2}", "threads: ${N}}", 14, "syntax", '"${NAME}"'),
]  # fmt: skip


@pytest.mark.parametrize("broken", TABLE, ids=lambda broken: broken.name)
def test_one_mistake_is_one_problem_at_its_line(broken: Broken, loaded: Loaded) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded((broken.old, broken.new))
    problems = caught.value.problems
    assert len(problems) == 1, caught.value
    (problem,) = problems
    assert problem.line == broken.line, problem
    assert broken.message in problem.message
    assert broken.hint in problem.hint
    assert problem.hint, "every problem says what to do"
    assert problem.column >= 1
    assert problem.file.endswith("recipe.yaml")
    assert caught.value.exit_code == ExitCode.WRONG_RECIPE
    assert caught.value.message == problem.message


def test_five_mistakes_are_found_at_once_in_file_order(loaded: Loaded) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(
            ("dtype: float32", "dtype: float"),
            ("samples: 16", "samples: 0"),
            ("max_drop: 0.01", "max_dorp: 0.01"),
            ("onnx: [export_onnx]", "onnx: [export, to_openvino]"),
            ("hint: latency", "hint: fast"),
        )
    assert [problem.line for problem in caught.value.problems] == [7, 9, 13, 19, 28]
    assert caught.value.message == "5 problems in the recipe"
