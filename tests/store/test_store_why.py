from __future__ import annotations

from typing import Any

import pytest

from optcli.store import Store, explain, key_of

SOURCE = {
    "step": "source",
    "code": {"files": {"models/net.py": "1f" * 32, "models/blocks.py": "2a" * 32}},
    "weights": "3b" * 32,
}


def export(source: dict[str, Any] = SOURCE, opset: int = 18) -> dict[str, Any]:
    return {
        "step": "export_onnx",
        "parent": key_of(source),
        "options": {"opset": opset, "names": ["image"]},
        "versions": {"torch": "2.9.0", "onnx": "1.19"},
        "inputs": [{"name": "image", "shape": ["batch", 3]}],
    }


def quantize(parent: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {
        "step": "quantize_nncf",
        "parent": key_of(parent),
        "options": {"preset": "mixed", **options},
        "versions": {"nncf": "3.3.0"},
        "data": {"calibration": "4c" * 32},
    }


def put(store: Store, *steps: dict[str, Any], kind: str = "artifact") -> None:
    for ingredients in steps:
        with store.work(kind, key_of(ingredients)) as work:
            store.put(kind, key_of(ingredients), work, {}, ingredients)


def planned(*steps: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {key_of(step): step for step in steps}


def said(why) -> list[str]:
    """The differences at the root of it all, each with the name of its step."""
    lines = []
    for difference in why.differences:
        deeper = difference.why is not None and difference.why.differences
        lines += said(difference.why) if deeper else [f"{why.step}: {difference}"]
    return lines


@pytest.fixture
def store(tmp_store: Store) -> Store:
    put(tmp_store, SOURCE, export(), quantize(export()))
    return tmp_store


def test_present_and_new(store):
    assert explain(export(), store).state == "present"
    why = explain({"step": "prune"}, store)
    assert (why.state, why.nearest, why.differences) == ("new", None, ())
    assert explain(export(), store, kind="measurement").state == "new"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"options": {"preset": "performance"}}, "options.preset: mixed -> performance"),
        ({"versions": {"nncf": "3.4.0"}}, "versions.nncf: 3.3.0 -> 3.4.0"),
        ({"data": {"calibration": "77" * 32}}, "data.calibration: 4c4c4c4c… -> 77777777…"),
        ({"options": {"preset": "mixed", "samples": 300}}, "options.samples: (absent) -> 300"),
        ({"versions": {}}, "versions.nncf: 3.3.0 -> (absent)"),
        ({"seed": 1}, "seed: (absent) -> 1"),
        ({"cpu": {"flags": ["avx2"]}}, "cpu.flags: (absent) -> ['avx2']"),
    ],
)
def test_one_changed_ingredient_is_named(store, change, expected):
    why = explain({**quantize(export()), **change}, store)
    named = [str(difference) for difference in why.differences]
    assert expected in named
    assert len(named) == 1 or change == {"versions": {}}
    assert why.state == "changed"
    assert why.nearest.key == key_of(quantize(export()))


def test_values_equal_in_python_but_not_in_the_key_are_named(store):
    why = explain({**export(), "options": {"opset": 18.0, "names": ["image"]}}, store)
    assert [str(difference) for difference in why.differences] == ["options.opset: 18 -> 18.0"]


def test_lists_of_specs_are_named_by_position(store):
    changed = {**export(), "inputs": [{"name": "image", "shape": ["batch", 4]}]}
    assert said(explain(changed, store)) == [
        "export_onnx: inputs.0.shape: ['batch', 3] -> ['batch', 4]"
    ]


def test_tuples_are_as_good_as_lists(store):
    same = {**export(), "inputs": ({"name": "image", "shape": ("batch", 3)},)}
    assert explain(same, store).state == "present"


def test_changed_file_is_named_through_all_its_children(store):
    edited = {**SOURCE, "code": {"files": {**SOURCE["code"]["files"], "models/blocks.py": "9d" * 32}}}
    wanted = quantize(export(edited))
    why = explain(wanted, store, wanted=planned(edited, export(edited), wanted))
    assert said(why) == ["source: code.files.models/blocks.py: 2a2a2a2a… -> 9d9d9d9d…"]
    assert [line.strip().split(" ")[0] for line in why.lines()] == [
        "quantize_nncf",
        "parent:",
        "export_onnx",
        "parent:",
        "source",
        "code.files.models/blocks.py:",
    ]


def test_own_and_inherited_changes_are_both_named(store):
    edited = {**SOURCE, "weights": "5e" * 32}
    wanted = quantize(export(edited), preset="performance")
    why = explain(wanted, store, wanted=planned(edited, export(edited), wanted))
    assert said(why) == [
        "source: weights: 3b3b3b3b… -> 5e5e5e5e…",
        "quantize_nncf: options.preset: mixed -> performance",
    ]


def test_parent_that_was_made_already_is_found_in_the_store(store):
    put(store, export(opset=19))
    why = explain(quantize(export(opset=19)), store)
    assert said(why) == ["export_onnx: options.opset: 18 -> 19"]


def test_parent_that_nobody_knows_is_named_by_its_key(store):
    why = explain(quantize(export(opset=19)), store)
    assert [difference.name for difference in why.differences] == ["parent"]
    assert why.differences[0].why is None


def test_old_parent_that_is_gone_is_replaced_by_the_nearest(store):
    put(store, export(opset=17))
    store.discard("artifact", key_of(export()))
    new = export(opset=16)
    assert said(explain(quantize(new), store, wanted=planned(new))) == [
        "export_onnx: options.opset: 17 -> 16"
    ]


def test_nearest_is_the_same_chain_not_another_variant(store):
    """Counted flatly, the export of the pruned network is as near: its parent differs, no more."""
    prune = {"step": "prune", "parent": key_of(SOURCE), "options": {"ratio": 0.5}}
    put(store, prune, {**export(), "parent": key_of(prune)})
    edited = {**SOURCE, "weights": "5e" * 32}
    why = explain(export(edited), store, wanted=planned(edited))
    assert said(why) == ["source: weights: 3b3b3b3b… -> 5e5e5e5e…"]


def test_another_step_in_between_is_named_as_such(store):
    prune = {"step": "prune", "parent": key_of(SOURCE), "options": {"ratio": 0.5}}
    inserted = {**export(), "parent": key_of(prune)}
    assert said(explain(inserted, store, wanted=planned(prune))) == ["prune: step: source -> prune"]


def test_nearest_is_the_one_with_the_fewest_differences(store):
    near = quantize(export(), preset="performance", samples=300)
    put(store, near)
    why = explain(quantize(export(), preset="performance", samples=200), store)
    assert why.nearest.key == key_of(near)
    assert said(why) == ["quantize_nncf: options.samples: 300 -> 200"]


def test_data_is_followed_into_its_samples(store):
    before, after = ({"step": "samples", "files": {"a.png": name * 32}} for name in ("aa", "bb"))
    put(store, before, kind="samples")
    put(store, {**quantize(export()), "data": {"calibration": key_of(before)}})
    wanted = {**quantize(export()), "data": {"calibration": key_of(after)}}
    assert said(explain(wanted, store, wanted=planned(after))) == [
        "samples: files.a.png: aaaaaaaa… -> bbbbbbbb…"
    ]


def test_a_follow_that_leads_nowhere_is_not_taken(store):
    unheard = {"step": "unheard"}
    why = explain({**quantize(export()), "parent": key_of(unheard)}, store, wanted=planned(unheard))
    assert [str(difference.name) for difference in why.differences] == ["parent"]
    assert not any("new" in line for line in why.lines())
