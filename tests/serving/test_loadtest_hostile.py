"""A load test of a server that means no good: an error in words or a counted failure, and an end."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hostile_server import SHAPED, flooding, http, serving, silent, trickling

from optcli.cli import run
from optcli.errors import InputError, OptcliError, StepError
from optcli.serving.loadtest import client, endpoint, metrics
from optcli.serving.loadtest.messages import Load, Setup, TensorAbout

READY, SERVER, MODEL, INFER = "/v2/health/ready", "/v2", "/v2/models/net", "/v2/models/net/infer"
DEEP = b"[" * 200_000 + b"]" * 200_000
HEAD = b"HTTP/1.1 200 OK\r\n"


def pages(**others):
    return {READY: http(), SERVER: http({"name": "test"}), MODEL: http(SHAPED), **others}


def described(**changes):
    return http({**SHAPED, "inputs": [{**SHAPED["inputs"][0], **changes}]})


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(endpoint, "_TIMEOUT_S", 0.1)


METADATA = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    DEEP,
    b'{"inputs": ' + DEEP + b"}",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": ' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"inputs": [{"name": "\\ud800", "datatype": "FP32", "shape": [1]}], "outputs": []}',
    b"\xff\xfe",
    b"1" * 5000,
]


@pytest.mark.parametrize("body", METADATA, ids=range(len(METADATA)))
def test_metadata_that_are_none_are_an_error_in_words(body):
    with serving(pages(**{MODEL: http(body)})) as url, pytest.raises(OptcliError) as caught:
        endpoint.asked(url, "net")
    assert caught.value.hint
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": None},
        {"inputs": {}},
        {"inputs": []},
        {"inputs": [None]},
        {"inputs": [[]]},
        {"inputs": [SHAPED["inputs"][0]] * 5000},
        {"outputs": None},
        {"outputs": "y"},
        {"outputs": ["y"]},
        {"outputs": [{}]},
        {"outputs": [{"name": 1}]},
        {"outputs": []},
    ],
)
def test_missing_and_wrong_parts_are_named(changes):
    served = pages(**{MODEL: http({**SHAPED, **changes})})
    said = pytest.raises(InputError, match=r"the server (names|describes)")
    with serving(served) as url, said as caught:
        endpoint.asked(url, "net")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [1e30, 2]},
        {"shape": [10**30, 2]},
        {"shape": [2**40]},
        {"shape": [-1, 2**31]},
        {"shape": [10**9, 1]},
        {"shape": [-2, 2]},
        {"shape": [-1, -(10**30)]},
        {"shape": [-1, 0]},
        {"shape": [1.5]},
        {"shape": [float("inf")]},
        {"shape": [float("nan")]},
        {"shape": ["1" * 5000]},
        {"shape": ["many"]},
        {"shape": [True, [1]]},
        {"shape": [None]},
        {"shape": [1] * 33},
        {"shape": [1] * 500_000},
        {"shape": "12"},
        {"shape": {"0": 1}},
        {"shape": None},
        {"name": None},
        {"name": ""},
        {"name": "x" * 5000},
        {"datatype": 7},
        {"datatype": ["FP32"]},
        {"datatype": "x" * 5000},
    ],
)
def test_shapes_types_and_names_that_no_input_has_are_refused(changes):
    said = pytest.raises(InputError, match=r"describes an input|would have [0-9,]+ bytes")
    with serving(pages(**{MODEL: described(**changes)})) as url, said as caught:
        endpoint.asked(url, "net")
    assert len(caught.value.message) < 400


def test_sizes_that_some_servers_write_as_text_or_with_a_point_are_read():
    with serving(pages(**{MODEL: described(shape=["-1", 2.0, 3])})) as url:
        assert endpoint.asked(url, "net").inputs[0].shape == (-1, 2, 3)


@pytest.mark.parametrize(
    "listed",
    [b"7", DEEP, b'{"models": 3}', b'{"models": [[1], {"name": {}}]}', json.dumps(["n" * 500] * 9000)],
    ids=range(5),
)
def test_a_list_of_models_of_any_form_is_only_a_hint(listed):
    listed = listed if isinstance(listed, bytes) else listed.encode()
    with serving(pages(**{"/v2/models": http(listed)})) as url:
        with pytest.raises(OptcliError, match="no model 'nett'"):
            endpoint.asked(url, "nett")
        with pytest.raises(OptcliError, match="not named") as caught:
            endpoint.asked(url, None)
    assert len(caught.value.hint) < 500


def test_no_page_is_followed_elsewhere():
    with serving(pages()) as other:
        sends = http(status="302 Found", location=f"{other}{MODEL}")
        for page in (READY, SERVER, MODEL):
            said = pytest.raises(InputError, match=r"sends elsewhere \(302, .* not followed")
            with serving(pages(**{page: sends})) as url, said:
                endpoint.asked(url, "net")
        with serving(pages(**{"/metrics": sends})) as url:
            assert metrics.read(url, 0.0) is None


SLOW = {
    "silence": silent,
    "a head without an end": trickling(HEAD, b"x-a: b\r\n"),
    "a line without an end": trickling(b"HTTP/1.1 200 ", b"a"),
    "one more attempt": trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a slow body": trickling(HEAD + b"content-length: 100000\r\n\r\n", b" "),
    "a body in slow pieces": trickling(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a body until the end": trickling(HEAD + b"\r\n", b" "),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", SLOW)
@pytest.mark.parametrize("page", [READY, MODEL])
def test_what_comes_slowly_has_an_end(way, page, hasty):
    with serving(pages(**{page: SLOW[way]})) as url, pytest.raises(OptcliError):
        # A status alone is enough to be ready.
        endpoint.asked(url, "net" if page != READY else "other", wait_s=0.3)


def test_a_body_without_an_end_is_cut(monkeypatch):
    monkeypatch.setattr(endpoint, "_MOST_BYTES", 1000)
    flood = flooding(HEAD + b"\r\n", b" " * 65_536)
    with serving(pages(**{MODEL: flood})) as url, pytest.raises(OptcliError, match="no model"):
        endpoint.asked(url, "net")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"a: b\r\n" * 500 + b"\r\n",
        HEAD + b"a: " + b"b" * 200_000 + b"\r\n\r\n",
    ],
    ids=range(7),
)
def test_what_breaks_off_or_is_no_http_is_an_error_in_words(answer, hasty):
    def breaks(connection):
        connection.sendall(answer)

    with serving(pages(**{MODEL: breaks})) as url, pytest.raises(OptcliError) as caught:
        endpoint.asked(url, "net")
    assert caught.value.hint
    with serving({"": breaks}) as url, pytest.raises(OptcliError):
        endpoint.asked(url.replace("http", "https"), "net")


@pytest.mark.parametrize(
    "text",
    [
        'model_compute_seconds_count{batch="%s"} 1\n' % ("9" * 5000),
        'model_compute_seconds_count{batch="1"} 1e308\n' * 20,
        'model_compute_seconds_sum{batch="1"} +Inf\nmodel_compute_seconds_count{batch="1"} NaN\n',
        'model_compute_seconds_sum{batch="1"} 1e400\n',
        "# TYPE model_stage_seconds histogram\nmodel_stage_seconds_bucket{le} 1\n",
        "\x00{}{}{} 1 1 1 1\n",
    ],
)
def test_figures_of_the_servers_own_may_be_of_any_form(text):
    earlier = metrics.Reading(0.0, {("model_cache_hits_total", ""): 1.0})
    metrics.figures(earlier, metrics.parsed(text, 1.0), 8)
    metrics.calls(earlier, metrics.parsed(text, 1.0))


def test_the_verb_ends_with_an_error_and_no_traceback(capsys):
    with serving(pages(**{MODEL: described(shape=[1e30])})) as url:
        assert run(["loadtest", url, "--model", "net", "--rate", "5"]) == 2
    said = capsys.readouterr().err
    assert "would have" in said or "describes an input" in said
    assert "Traceback" not in said


# --- answers to requests ----------------------------------------------------------------------------

RIGHT = http(
    {"model_name": "net", "outputs": [{**SHAPED["outputs"][0], "shape": [1, 2], "data": [1, 2]}]}
)


def answered(**changes):
    return http(
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **changes}]}
    )


def loaded(url, tmp_path, served=None, after=None, *, encoding="json", timeout_s=20.0):
    """Twelve requests; after the references are there, the server answers otherwise."""
    inputs = (TensorAbout("x", "FP32", (-1, 2)),)
    one = client._Client(Setup(url, "net", inputs, ("y",), random_samples=2))
    references = one._references

    async def then(*arguments):
        known = await references(*arguments)
        if served is not None:
            served[INFER] = after
        return known

    one._references = then
    np.save(tmp_path / "times.npy", np.arange(12.0))
    load = Load(
        tmp_path / "times.npy",
        tmp_path / "records.npz",
        encoding,
        timeout_s,
        answers=tmp_path / "answers.npz",
    )
    sent = asyncio.run(one.carry_out(load, SimpleNamespace(send=lambda news: None)))
    with np.load(tmp_path / "records.npz") as records:
        causes = records["causes"].tolist()
        return sent, {causes[number] for number in records["cause"]}


ANSWERS = {
    "elsewhere": (http(status="307 Temporary", location="/v2/models/net/infer"), "http_307"),
    "no HTTP": (lambda connection: connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28"), "connection"),
    "half an answer": (lambda connection: connection.sendall(RIGHT[:-9]), "connection"),
    "nothing": (lambda connection: None, "connection"),
    "silence": (silent, "timeout"),
    "a slow head": (trickling(HEAD, b"x-a: b\r\n"), None),
    "a slow body": (trickling(HEAD + b"\r\n", b" "), "timeout"),
    "a wrong length": (http(b"{}", content_length="1e9"), "connection"),
    "two lengths": (HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", "connection"),
    "a body without an end": (flooding(HEAD + b"\r\n", b" " * 65_536), "connection"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ANSWERS)
def test_what_is_no_answer_is_a_counted_failure(way, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "_MOST_HELD_BYTES", 10_000_000)
    answer, cause = ANSWERS[way]
    served = pages(**{INFER: RIGHT})
    with serving(served) as url:
        # A busy machine takes longer than a hasty limit to see that a connection ended.
        limit_s = 60.0 if cause in ("connection", "http_307") else 0.3
        sent, causes = loaded(url, tmp_path, served, answer, timeout_s=limit_s)
    assert "" not in causes
    assert cause is None or causes == {cause}
    assert (sent.checked, sent.wrong) == (0, 0)


WRONG = {
    "deep": http(DEEP),
    "no JSON": http(b"\xff"),
    "no outputs": http({"outputs": None}),
    "other outputs": answered(name="z"),
    "a name that is none": answered(name={"a": 1}),
    "texts": answered(datatype="BYTES", data=["a", "b"]),
    "texts as numbers": answered(data=["a", "b"]),
    "no data": answered(data=None),
    "a shape of 1e30": answered(shape=[10**30]),
    "a negative shape": answered(shape=[-5, 7]),
    "a type that is none": answered(datatype="FP99"),
    "a packed body": http(b"\x1f\x8b" + b"x" * 50, content_encoding="gzip"),
    "a length of many digits": http(b"{}", inference_header_content_length="1" * 4301),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WRONG)
def test_an_answer_of_any_form_is_wrong_and_said_so(way, tmp_path):
    served = pages(**{INFER: RIGHT})
    with serving(served) as url:
        sent, causes = loaded(url, tmp_path, served, WRONG[way])
    assert causes == {""}
    assert (sent.checked, sent.wrong) == (12, 12)
    assert len(sent.wrong_example) < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    # Answers with other names are like themselves.
    ["deep", "no JSON", "no outputs", *list(WRONG)[5:], "elsewhere", "nothing", "a wrong length"],
)
def test_a_first_answer_that_is_none_ends_the_test_in_words(way, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "_MOST_HELD_BYTES", 10_000_000)
    answer = WRONG[way] if way in WRONG else ANSWERS[way][0]
    with serving(pages(**{INFER: answer})) as url, pytest.raises(StepError) as caught:
        loaded(url, tmp_path)
    assert caught.value.hint


@pytest.mark.slow
def test_a_row_of_random_values_that_is_large_is_there_once(monkeypatch):
    from optcli.serving.loadtest import payloads

    monkeypatch.setattr(payloads, "MOST_BYTES", 1000)
    large = (TensorAbout("x", "FP32", (-1, 200)), TensorAbout("z", "INT64", (-1, 2)))
    samples = payloads.samples_of(Setup("", "net", large, ("y",)))
    assert {name: array.shape for name, array in samples.items()} == {"x": (1, 200), "z": (1, 2)}
