"""A report as a build would write it, with something of everything."""

from optcli.results import (
    Accuracy,
    Against,
    ArtifactSummary,
    Estimate,
    Latency,
    OutputError,
    RecipeSummary,
    Report,
    VariantReport,
    Verdict,
)
from optcli.results.flags import fluctuating, too_few_calls

NOW = "2026-03-01T12:00:00+00:00"
FLUCTUATING, TOO_FEW = fluctuating(0.14), too_few_calls(99, 128, 368)


def latency(p50, speedup, batch_size=1, at=NOW, flags=(), spread=0.02):
    def around(value):
        return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))

    p99 = None if any(flag.kind == "too-few-calls" for flag in flags) else around(p50 * 1.5)
    return Latency(
        batch_size=batch_size,
        threads=2,
        samples=368 if p99 else 128,
        p50_ms=around(p50),
        p90_ms=around(p50 * 1.1),
        p95_ms=around(p50 * 1.2),
        p99_ms=p99,
        mean_ms=p50,
        throughput_per_s=batch_size / p50 * 1e3,
        speedup=around(speedup) if speedup != 1 else Estimate(value=1, low=1, high=1),
        measured_at=at,
        flags=flags,
    )


def accuracy(lost=0, gained=0, samples=360, right=356):
    drop = (lost - gained) / samples
    return Accuracy(
        metric="top1",
        value=right / samples - drop,
        baseline=right / samples,
        samples=samples,
        drop=Estimate(value=drop, low=drop - 0.01, high=drop + 0.01),
        regressed=lost,
        improved=gained,
        output_error=OutputError(
            sqnr_db=34.2, cosine=0.999, max_abs=0.1, mean_abs=0.01, finite=True, constant=False
        ),
    )


def verdict(name, outcome="accept", blocking=True, reason="because", actual=1.0):
    over = name.partition(" over ")[2] or None
    return Verdict(
        name=name, outcome=outcome, blocking=blocking, reason=reason, actual=actual, over=over
    )


def variant(
    size_bytes, rows, right=None, verdicts=(), runtime="onnxruntime", precision="fp32", **options
):
    artifact = ArtifactSummary(
        key="k", format="onnx", path="p", precision=precision, size_bytes=size_bytes
    )
    return VariantReport(
        **{
            "status": "built",
            "artifact": artifact,
            "runner": {"name": runtime, "precision": precision, "threads": 2},
            "latency": tuple(rows),
            "accuracy": right,
            "verdicts": tuple(verdicts),
            **options,
        }
    )


def both(p50, speedup, fp32=None, **options):
    """Rows at batch sizes 1 and 8; `fp32` names the fastest in fp32 and the speed-up over it."""
    rows = [latency(p50, speedup, **options), latency(p50 * 4, speedup, 8)]
    if fp32 is not None:
        name, times = fp32
        around = Estimate(value=times, low=times * 0.98, high=times * 1.02)
        against = Against(variant=name, speedup=around)
        rows = [row.model_copy(update={"over_fp32": against}) for row in rows]
    return rows


def report(variants=None, **options):
    variants = variants or {
        "eager": variant(
            2_470_000, both(2.41, 1, ("onnx", 0.374)), accuracy(), [verdict("outputs")], runtime="torch"
        ),
        "onnx": variant(2_480_000, both(0.902, 2.67, ("onnx", 1.0)), accuracy(), [verdict("accuracy")]),
        "onnx-int8": variant(
            712_000,
            both(0.4123, 5.85, ("onnx", 2.19), flags=(FLUCTUATING,)),
            accuracy(2, 1),
            [
                verdict("accuracy"),
                verdict("speed-up", blocking=False),
                verdict(
                    "speed-up over onnx",
                    "inconclusive",
                    blocking=False,
                    reason="1.02 times [0.95, 1.10] as fast as onnx",
                ),
            ],
            precision="int8",
        ),
        "pruned-onnx": variant(
            1_240_000,
            both(0.61, 3.95, ("onnx", 1.48), flags=(TOO_FEW,)),
            accuracy(14, 2),
            [
                verdict(
                    "accuracy",
                    "reject",
                    reason="top1 95.56 %, 3.33 points below the baseline's 98.89 %",
                )
            ],
        ),
        "aoti": VariantReport(
            status="failed", reason="it was killed, most likely because memory ran out", log="aoti.log"
        ),
        "trt": VariantReport(status="skipped", reason="no NVIDIA GPU was found"),
    }
    return Report(
        **{
            "recipe": RecipeSummary(name="digits", path="digits.yaml", digest="d"),
            "environment": {"cpu": {"model": "EPYC"}, "cores": 2},
            "baseline": "eager",
            "recommended": "onnx-int8",
            "recommendation": "Serve onnx-int8: 5.85 times as fast as eager.",
            "started": NOW,
            "finished": NOW,
            "exit_code": 4,
            "exit_reason": "aoti failed",
            "protocol": {
                "mode": "quick",
                "launches": 1,
                "rounds": 8,
                "calls_per_round": [46, 200],
                "threads": [2],
                "inputs": "real samples in rotation",
                "groups": [["eager"]],
            },
            "variants": variants,
            **options,
        }
    )
