"""Executions on the fake driver: real data through real addresses, in every way an engine runs."""

import fake_tensorrt
import numpy as np
import pytest
from fake_driver import LONG, SHORT, plan

from optcli.models.engines import EngineError
from optcli.models.engines.running.slots import Element

RNG = np.random.default_rng(0)


def images(batch, dtype="float32"):
    return RNG.standard_normal((batch, 3)).astype(dtype)


def run(engine, image):
    engine.bind({"image": image})
    engine.execute()
    return engine.fetch()["logits"]


@pytest.mark.parametrize("cuda_graphs", ["on", "off", "auto"])
def test_outputs_are_right_call_after_call(execution, cuda_graphs):
    engine = execution(plan(), cuda_graphs=cuda_graphs)
    for batch in (1, 4, 4, 4, 8, 2, 2, 8):
        image = images(batch)
        assert np.array_equal(run(engine, image), 2 * image)


def test_outputs_are_copies(execution):
    engine = execution(plan())
    image = images(4)
    first = run(engine, image)
    run(engine, images(4))
    assert np.array_equal(first, 2 * image)


def test_the_region_device_is_computing_alone(execution):
    # Each copy takes 100 ms on the fake GPU, computing 1.5 ms.
    engine = execution(plan())
    for _ in range(3):
        run(engine, images(4))
        assert engine.device_ms() == pytest.approx(fake_tensorrt.MS)


def test_a_late_launch_is_no_time_of_the_device(execution):
    # Launching a graph takes 25 ms on the fake GPU: only events inside of it leave that out.
    engine = execution(plan())
    for _ in range(3):
        run(engine, images(4))
    assert engine.device_ms() == pytest.approx(fake_tensorrt.MS)


def test_where_events_cannot_be_recorded_they_stand_around_the_launch(execution, cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuEventRecordWithFlags")
    before = cuda.fake_allocated()
    engine = execution(plan())
    for _ in range(3):
        image = images(4)
        assert np.array_equal(run(engine, image), 2 * image)
    assert engine.describe()["cuda_graphs"] == "on"
    assert engine.device_ms() == pytest.approx(25 + fake_tensorrt.MS)
    engine.close()
    assert cuda.fake_allocated() == before


def test_a_graph_is_recorded_after_a_plain_call_and_again_for_other_shapes(execution, cuda):
    engine = execution(plan())
    launches, captures = cuda.fake_launches(), cuda.fake_captures()
    assert engine.describe()["cuda_graphs"] == "not yet"
    run(engine, images(4))
    # One launch to see whether its events tell the time.
    assert (cuda.fake_launches() - launches, cuda.fake_captures() - captures) == (1, 1)
    assert engine.describe()["cuda_graphs"] == "on"
    run(engine, images(4))
    run(engine, images(4))
    assert (cuda.fake_launches() - launches, cuda.fake_captures() - captures) == (3, 1)
    run(engine, images(8))
    run(engine, images(8))
    assert (cuda.fake_launches() - launches, cuda.fake_captures() - captures) == (5, 2)


def test_without_graphs_nothing_is_recorded(execution, cuda):
    captures = cuda.fake_captures()
    engine = execution(plan(), cuda_graphs="off")
    run(engine, images(4))
    run(engine, images(4))
    assert cuda.fake_captures() == captures
    assert engine.describe()["cuda_graphs"] == "off (not wanted)"


def test_what_cannot_be_recorded_runs_without_and_says_why(execution):
    engine = execution(plan(synchronizes=True))
    for _ in range(3):
        image = images(4)
        assert np.array_equal(run(engine, image), 2 * image)
    assert engine.describe()["cuda_graphs"].startswith("off (cuStreamEndCapture failed")


def test_where_graphs_are_demanded_that_is_an_error(execution):
    engine = execution(plan(synchronizes=True), cuda_graphs="on")
    engine.bind({"image": images(4)})
    with pytest.raises(EngineError, match="no CUDA graph can be recorded") as raised:
        engine.execute()
    assert "cuda_graphs: auto" in raised.value.hint


def test_an_unknown_wish_is_refused(execution):
    with pytest.raises(EngineError, match="cuda_graphs is 'maybe'"):
        execution(plan(), cuda_graphs="maybe")


def test_the_profile_is_chosen_by_the_shape(execution):
    engine = execution(plan(profiles=(SHORT, LONG)))
    context = fake_tensorrt.IExecutionContext.last
    for batch, profile in ((2, 0), (40, 1), (64, 1), (1, 0)):
        image = images(batch)
        assert np.array_equal(run(engine, image), 2 * image)
        assert engine.describe()["profile"] == profile
    assert context.switches == [0, 1, 0]
    run(engine, images(8))  # both take it: nearer to 4 than to 32
    assert context.switches == [0, 1, 0]


def test_the_only_profile_is_not_set(execution):
    engine = execution(plan())
    run(engine, images(2))
    assert fake_tensorrt.IExecutionContext.last.switches == []


def test_a_profile_can_be_fixed(execution):
    engine = execution(plan(profiles=(SHORT, LONG)), profile=1)
    run(engine, images(8))
    assert engine.describe()["profile"] == 1
    with pytest.raises(EngineError, match=r"shape \[2, 3\].*profile 1 takes \[8, 3\] to \[64, 3\]"):
        engine.bind({"image": images(2)})


def test_a_profile_that_is_not_there(execution):
    engine = execution(plan(), profile=3)
    with pytest.raises(EngineError, match="no optimization profile 3: the engine has 1"):
        engine.bind({"image": images(2)})


@pytest.mark.parametrize("shape", [(9, 3), (0, 3), (4, 2), (4,), (4, 3, 1)])
def test_shapes_outside_are_an_error_that_names_what_is_taken(execution, shape):
    engine = execution(plan())
    run(engine, images(4))
    with pytest.raises(EngineError, match=r"profile 0 takes \[1, 3\] to \[8, 3\]") as raised:
        engine.bind({"image": np.zeros(shape, "float32")})
    assert str(list(shape)) in raised.value.message
    assert "inputs" in raised.value.hint
    image = images(4)  # and it goes on afterwards
    assert np.array_equal(run(engine, image), 2 * image)


def test_a_fixed_shape_is_named_as_it_is(execution):
    fixed = {"shape": [2, 3]}
    engine = execution(plan(image=fixed, output=fixed))
    image = images(2)
    assert np.array_equal(run(engine, image), 2 * image)
    with pytest.raises(EngineError, match=r"profile 0 takes \[2, 3\]$"):
        engine.bind({"image": images(3)})


def test_an_input_that_is_missing(execution):
    with pytest.raises(EngineError, match="takes the inputs image, and 'image' is missing"):
        execution(plan()).bind({"picture": images(2)})


def test_nothing_runs_before_something_is_bound(execution):
    engine = execution(plan())
    with pytest.raises(EngineError, match="nothing was bound"):
        engine.execute()
    with pytest.raises(EngineError, match="nothing was computed"):
        engine.fetch()


def test_an_output_that_is_larger_than_its_memory_is_an_error(execution):
    output = {"varies": True, "shape": [-1], "unbounded": True}
    engine = execution(plan(output=output, old=True))
    assert run(engine, np.ones((2, 3), "float32")).shape == (6,)
    with pytest.raises(EngineError, match=r"made 48 bytes of the output 'logits' and asked for 24"):
        run(engine, np.ones((4, 3), "float32"))


@pytest.mark.parametrize("old", [False, True])  # 8.6 has reallocate_output alone
def test_outputs_whose_size_depends_on_the_data(execution, old):
    engine = execution(plan(output={"varies": True, "shape": [-1]}, old=old))
    for batch in (4, 1, 8, 8):
        image = images(batch)
        assert np.array_equal(run(engine, image), image[image > 0])
    assert run(engine, -np.ones((4, 3), "float32")).shape == (0,)
    assert engine.describe()["cuda_graphs"] == "off (the sizes of logits depend on the data)"
    assert engine.device_ms() == pytest.approx(fake_tensorrt.MS)


def test_graphs_cannot_be_demanded_of_such_an_engine(execution):
    engine = execution(plan(output={"varies": True, "shape": [-1]}), cuda_graphs="on")
    with pytest.raises(EngineError, match="the sizes of logits depend on the data"):
        engine.bind({"image": images(2)})


def test_memory_that_such_an_output_cannot_get_is_an_error(execution, monkeypatch):
    engine = execution(plan(output={"varies": True, "shape": [-1], "unbounded": True}))
    engine.bind({"image": np.ones((8, 3), "float32")})
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2")
    with pytest.raises(EngineError, match="no memory for the output 'logits'"):
        engine.execute()


@pytest.mark.parametrize(
    ("dtype", "given", "taken"),
    [
        ("FLOAT", "float64", "float32"),
        ("HALF", "float32", "float16"),
        ("INT32", "int64", "int32"),
        ("INT64", "int64", "int64"),
        ("INT8", "int8", "int8"),
    ],
)
def test_inputs_are_cast_to_what_the_engine_takes(execution, dtype, given, taken):
    image = np.arange(12).reshape(4, 3).astype(given)
    found = run(execution(plan(dtype=dtype)), image)
    assert found.dtype == taken
    assert np.array_equal(found, 2 * image)


def test_an_input_that_would_be_cut_off_is_refused(execution):
    engine = execution(plan(dtype="INT32"))
    with pytest.raises(EngineError, match="float32 does not fit into INT32"):
        engine.bind({"image": images(4)})


def test_bfloat16_is_float32_outside(execution):
    image = np.array([[1.0, -2.5, 3.14159265], [1e-30, 3e38, 0.0]], "float32")
    found = run(execution(plan(dtype="BF16")), image)
    assert found.dtype == np.float32
    assert np.allclose(found, image, rtol=2**-8)
    assert found[0, :2].tolist() == [1.0, -2.5]


def test_bfloat16_rounds_to_the_nearest_even():
    import ml_dtypes

    values = np.concatenate(
        [
            RNG.standard_normal(1000).astype("float32"),
            # Halfway between two neighbours: up and down to the even one.
            np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000], "uint32").view("float32"),
        ]
    )
    view = np.empty(values.shape, "uint16")
    Element("BF16").store(view, values)
    wanted = values.astype(ml_dtypes.bfloat16).astype("float32")
    assert np.array_equal(Element("BF16").load(view), wanted)
    Element("BF16").store(view[:1], np.array([np.nan], "float32"))
    assert np.isnan(Element("BF16").load(view[:1]))


def test_fp8_is_read():
    import ml_dtypes

    bits = np.arange(256, dtype="uint8")
    wanted = bits.view(ml_dtypes.float8_e4m3fn).astype("float32")
    assert np.array_equal(Element("FP8").load(bits), wanted, equal_nan=True)


def test_types_without_whole_bytes_are_refused():
    with pytest.raises(EngineError, match="type INT4 cannot be handed over"):
        _ = Element("INT4").stored


def test_a_flag_of_booleans(execution):
    image = images(4)
    found = run(execution(plan(output={"dtype": "BOOL"})), image)
    assert np.array_equal(found, image > 0)


def test_inputs_that_the_processor_reads(execution):
    engine = execution(plan(image={"location": "HOST"}, output={"location": "HOST"}))
    for batch in (4, 4, 2):
        image = images(batch)
        assert np.array_equal(run(engine, image), 2 * image)
    assert engine.describe()["cuda_graphs"] == "off (image is read or written by the processor)"


def test_a_plan_that_is_refused_is_an_error_with_tensorrts_words(execution):
    with pytest.raises(EngineError, match="cannot load the engine: the engine file is truncated") as e:
        execution(plan()[:-5])
    assert "plan.header.size == blobSize" in e.value.message
    assert "build" in e.value.hint


def test_a_run_that_fails_is_an_error_with_tensorrts_words(execution):
    engine = execution(plan(fails=True))
    engine.bind({"image": images(2)})
    with pytest.raises(EngineError, match="could not run the engine") as raised:
        engine.execute()
    assert "enqueueV3" in raised.value.message


def test_a_gpu_that_fails_while_it_computes_is_an_error(execution, monkeypatch):
    engine = execution(plan())
    engine.bind({"image": images(2)})
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize")
    with pytest.raises(EngineError, match="cuStreamSynchronize failed: unknown error"):
        engine.execute()


def test_code_in_a_plan_runs_only_where_that_was_said(execution):
    with pytest.raises(EngineError, match="engine_host_code_allowed"):
        execution(plan(host_code=True))
    execution(plan(host_code=True), host_code=True)


def test_what_runs_is_described(execution):
    found = execution(plan(profiles=(SHORT, LONG))).describe()
    assert found == {
        "product": "tensorrt",
        "version": "10.16.1.11",
        "gpu": "Fake GPU 0",
        "compute_capability": "9.0",
        "driver": found["driver"],
        "cuda": "13.0",
        "profiles": 2,
        "profile": 0,
        "cuda_graphs": "not yet",
        "device_times": "around the launch",
        "streams": 2,
        "layers": 7,
    }


def test_everything_is_let_go_of(execution, cuda):
    before = cuda.fake_allocated()
    engine = execution(plan(profiles=(SHORT, LONG)))
    for batch in (2, 2, 40):
        run(engine, images(batch))
    assert cuda.fake_allocated() > before
    engine.close()
    assert cuda.fake_allocated() == before


@pytest.mark.parametrize(
    ("cuda_graphs", "strategy", "state"),
    [
        ("auto", "WHOLE_GRAPH_CAPTURE", "on (TensorRT-RTX's own)"),
        ("off", "DISABLED", "off (not wanted)"),
    ],
)
def test_tensorrt_rtx_records_graphs_itself(execution, cuda, cuda_graphs, strategy, state):
    captures = cuda.fake_captures()
    engine = execution(plan(), rtx=True, cuda_graphs=cuda_graphs)
    (settings,) = fake_tensorrt.IExecutionContext.last._settings
    assert settings.cuda_graph_strategy.name == strategy
    for _ in range(3):
        image = images(4)
        assert np.array_equal(run(engine, image), 2 * image)
    assert cuda.fake_captures() == captures
    assert engine.describe()["cuda_graphs"] == state


def test_tensorrt_rtx_keeps_its_kernels_in_a_file(execution, tmp_path):
    file = tmp_path / "kernels"
    execution(plan(), rtx=True, kernel_cache=file).close()
    assert file.read_bytes() == b"kernels"
    execution(plan(), rtx=True, kernel_cache=file)
    (settings,) = fake_tensorrt.IExecutionContext.last._settings
    assert settings.cache.blob == b"kernels"
