#!/usr/bin/env bash
# Fifteen minutes on a GPU, in parts. Each step has a limit, keeps its results, and is not done twice.
#
#   python benchmarks/gpu_pack.py FOLDER             # beforehand, where there is a network
#   bash benchmarks/gpu_day.sh PART FOLDER OUT       # on the machine, for PART 1, 2, 3 and 4
#   bash benchmarks/gpu_day.sh --dry-run [FOLDER]    # all parts on the CPU with a tiny network; bytes and times
#
# The machine has CUDA, PyTorch, torchvision and onnx. FOLDER holds what else is needed, as gpu_pack.py packed it; OUT
# is where results go, and a later call with the same OUT goes on behind the last step. `TENSORRT` names a Python with
# TensorRT 8.6 (docs/gpu-check.md); without one part 3 is left out. A dry run fails where all of it would take longer
# than 13 minutes: starts and transfers take START_S and TRANSFER_S each.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
START_S=${START_S:-90} TRANSFER_S=${TRANSFER_S:-20} MOST_S=${MOST_S:-780}
DRY=0
[ "${1:-}" = --dry-run ] && { DRY=1; shift; FOLDER=${1:-}; OUT=$(mktemp -d); }

# Part, name, limit in seconds, command.
steps() {
    local check="benchmarks/gpu_check.py --no-tests --work $OUT/work --out $OUT"
    cat <<STEPS
1 tests-torch 50 -m pytest -q -p no:cacheprovider tests/gpu/test_gpu_torch.py tests/gpu/test_gpu_finetune.py
1 torch 75 $check --minutes 1.2 --networks resnet50,mobilenet_v3 --variants eager-tf32,eager-amp,compile,aoti
1 halves 55 $check --minutes 0.9 --networks resnet50_fp16,resnet50_bf16,mobilenet_v3_fp16 --variants compile,aoti
2 tests-onnx 50 -m pytest -q -p no:cacheprovider tests/gpu/test_gpu_onnxruntime.py
2 onnx 110 $check --minutes 1.8 --networks resnet50 --variants onnx-cuda,onnx-cuda-graphs,onnx-cuda-fp16
3 tensorrt 200 $check --minutes 3.3 --networks resnet50 --stages tensorrt
4 sweep 50 benchmarks/gpu_sweep.py --variant aoti --networks resnet50 --seconds 20 --launches 2 --work $OUT/work --out $OUT/gpu-sweep.json
4 copies 35 benchmarks/gate_runs.py --artifact $OUT/work/artifacts/gpu-sweep-resnet50/aoti --runs 20 --seconds 30
4 slower 35 benchmarks/gate_runs.py --artifact $OUT/work/artifacts/gpu-sweep-resnet50/aoti --runs 20 --seconds 30 --slower 0.1
STEPS
}

# In a dry run: the tests are collected, the tiny network goes the networks' way, and scripts of part 4 print their help.
tried() {
    case "$1" in
    torch | halves | onnx | tensorrt) echo "${2%% --minutes*} --dry-run" ;;
    tests-*) echo "$2 --collect-only" ;;
    sweep | copies | slower) echo "${2%% *} --help" ;;
    esac
}

run_part() {
    local part name limit command began code failed=0
    while read -r part name limit command; do
        [ "$part" = "$1" ] || continue
        [ -e "$OUT/$name.done" ] && { echo "$name: done already"; continue; }
        if [ "$name" = tensorrt ] && [ -z "${TENSORRT:-}" ] && [ $DRY = 0 ]; then
            echo "$name: left out, TensorRT 8.6 takes 415 MiB packed, seven transfers"
            continue
        fi
        # A processor takes as long as it takes.
        [ $DRY = 1 ] && command=$(tried "$name" "$command") && limit=$((10 * limit))
        began=$SECONDS
        # shellcheck disable=SC2086
        OPTCLI_TENSORRT_PYTHON=${TENSORRT:-} timeout -k 5 "$limit" "$PYTHON" $command > "$OUT/$name.log" 2>&1 < /dev/null
        code=$?
        for file in "$OUT"/gpu-20*.json "$OUT"/gpu-20*.md; do
            [ -e "$file" ] && mv "$file" "$OUT/$name.${file##*.}"
        done
        echo "$name: exit $code, $((SECONDS - began)) s of $limit"
        # 1 and 5 are verdicts of gpu_check: it was done.
        case $code in 0 | 1 | 5) touch "$OUT/$name.done" ;; esac
        [ $code = 0 ] || { failed=1; tail -n 3 "$OUT/$name.log"; }
    done < <(steps)
    return $failed
}

if [ $DRY = 1 ]; then
    failed=0 transfers=1
    if [ -n "$FOLDER" ]; then
        "$PYTHON" benchmarks/gpu_pack.py "$FOLDER" --list || failed=1
        transfers=$("$PYTHON" benchmarks/gpu_pack.py "$FOLDER" --list | wc -l)
    fi
    for part in 1 2 3 4; do run_part $part || failed=1; done
    total=$(steps | awk -v more=$((START_S + transfers * TRANSFER_S)) '$1 != 3 {s += $3} END {print s + more}')
    echo "a start of $START_S s, $transfers transfers of $TRANSFER_S s, all steps but TensorRT's: $total s of $MOST_S"
    [ "$total" -le "$MOST_S" ] || { echo "that is too long"; failed=1; }
    exit $failed
fi

[ $# = 3 ] || { sed -n '2,12p' "$0"; exit 2; }
FOLDER=$2 OUT=$3
mkdir -p "$OUT"
SITE=${SITE:-/tmp/gpu-day-site}
if [ -d "$FOLDER" ] && [ ! -e "$SITE/$1.done" ]; then
    "$PYTHON" benchmarks/gpu_pack.py "$FOLDER" --unpack "$SITE" && touch "$SITE/$1.done" || exit 1
fi
export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}"
run_part "$1"
