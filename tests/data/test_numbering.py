"""One numbering of labels for all roles, by the names of classes."""

import pytest

from optcli.data import numbering
from optcli.data.numbering import ModelClasses, RoleClasses, numbered
from optcli.errors import InputError
from optcli.settings.labels import LabelSettings


def roles(**names):
    return {role: RoleClasses(tuple(each.split())) for role, each in names.items()}


def maps(found):
    return {role: each and dict(each.map) for role, each in found.roles.items()}


def test_data_that_agree_are_left_as_they_are():
    found = numbered(roles(training="ant bee", evaluation="ant bee"), ModelClasses(count=2), {})
    assert maps(found) == {"training": None, "evaluation": None}
    assert (found.notes, found.doubts) == ((), ())


def test_a_class_that_one_role_lacks_shifts_no_label_and_is_named():
    found = numbered(roles(training="ant elk fox", evaluation="ant fox"), ModelClasses(), {})
    assert maps(found)["evaluation"] == {"ant": 0, "fox": 2}
    assert maps(found)["training"] is None
    assert found.roles["evaluation"].classes == ("ant", "elk", "fox")
    assert "evaluation data lack the class elk" in found.notes[0]


def test_without_training_the_sorted_names_of_all_roles_count():
    found = numbered(roles(calibration="ant elk fox", evaluation="ant bee fox"), ModelClasses(), {})
    assert maps(found)["evaluation"] == {"ant": 0, "bee": 1, "fox": 3}


def test_calibration_of_other_classes_shifts_nothing():
    found = numbered(roles(calibration="images", evaluation="ant fox"), ModelClasses(), {})
    assert maps(found) == {"calibration": None, "evaluation": None}


def test_training_says_the_order():
    found = numbered(roles(training="fox ant", evaluation="ant fox"), ModelClasses(), {})
    assert maps(found)["evaluation"] == {"ant": 1, "fox": 0}
    assert "another order" in found.notes[0]


def test_an_order_that_nobody_knows_is_refused():
    with pytest.raises(InputError, match="the order of the classes is not known") as raised:
        numbered(roles(validation="dog cat", evaluation="cat dog"), ModelClasses(), {})
    assert "class_names" in raised.value.hint


def test_the_model_s_names_come_first():
    model = ModelClasses(("person", "traffic light", "dog"), 3, "the model's file")
    found = numbered(roles(training="dog person", evaluation="dog Traffic_Light"), model, {})
    assert maps(found) == {
        "training": {"dog": 2, "person": 0},
        "evaluation": {"dog": 2, "Traffic_Light": 1},
    }


def test_a_class_that_is_none_of_the_model_s_is_refused_unless_it_has_no_sample():
    model = ModelClasses(("cat", "dog"), 2, "the weights")
    with pytest.raises(InputError, match="'elk', a class of the evaluation data") as raised:
        numbered(roles(evaluation="cat elk"), model, {})
    assert "ignore: [elk]" in raised.value.hint
    empty = {"evaluation": RoleClasses(("cat", "elk"), (), frozenset({"elk"}))}
    found = numbered(empty, model, {})
    assert maps(found)["evaluation"] == {"cat": 0}
    assert found.roles["evaluation"].ignore == ("elk",)


def test_a_map_and_what_is_ignored():
    model = ModelClasses(("cat", "dog"), 2, "class_names")
    said = {"evaluation": LabelSettings(map={"kitten": "cat", "7": 1}, ignore=("background",))}
    own = {"evaluation": RoleClasses(("background", "kitten", "puppy"), (0, 5, 7))}
    found = numbered(own, model, said)
    assert maps(found)["evaluation"] == {"kitten": 0, "puppy": 1}


def test_an_offset_moves_what_the_map_does_not_name():
    said = {"evaluation": LabelSettings(offset=1, map={"fox": 0})}
    found = numbered(roles(evaluation="ant bee fox"), ModelClasses(count=4), said)
    assert maps(found)["evaluation"] == {"ant": 1, "bee": 2, "fox": 0}
    assert found.roles["evaluation"].classes == ("class 0", "ant", "bee", "fox")


def test_names_of_which_none_agrees_are_taken_in_turn_where_they_are_as_many():
    model = ModelClasses(("Katze", "Hund"), 2, "class_names")
    found = numbered(roles(evaluation="cat dog"), model, {})
    assert maps(found)["evaluation"] is None
    assert "taken to be the same" in found.notes[0]
    with pytest.raises(InputError, match="none of the 3 classes of the evaluation data"):
        numbered(roles(evaluation="a b c"), model, {})


def test_folders_named_by_number_are_the_model_s_numbers():
    model = ModelClasses(tuple("abcdefghijkl"), 12, "the weights")
    found = numbered(roles(evaluation="0 1 10 2"), model, {})
    assert maps(found)["evaluation"] == {"0": 0, "1": 1, "10": 10, "2": 2}


def test_synsets_of_imagenet_are_found_among_its_classes():
    model = ModelClasses(("tench", "hen"), 2, "the weights", ("n01440764", "n01514859"))
    found = numbered(roles(evaluation="n01514859"), model, {})
    assert maps(found)["evaluation"] == {"n01514859": 1}
    nameless = ModelClasses(None, 2, "", ("n01440764", "n01514859"))
    assert maps(numbered(roles(evaluation="n01514859"), nameless, {}))["evaluation"] == {"n01514859": 1}
    assert maps(numbered(roles(evaluation="cat dog"), nameless, {}))["evaluation"] is None


VOC = "bicycle bird boat bottle bus"


@pytest.mark.slow
def test_classes_of_coco_that_say_no_order_have_that_of_coco():
    found = numbered(roles(calibration="images", evaluation=VOC), ModelClasses(count=80), {})
    numbers = {"bicycle": 1, "bird": 14, "boat": 8, "bottle": 39, "bus": 5}
    assert maps(found)["evaluation"] == numbers
    assert "class_names" in found.notes[0]
    of_coco = {"evaluation": RoleClasses(tuple(VOC.split()), (2, 16, 9, 44, 6), numbered=True)}
    assert maps(numbered(of_coco, ModelClasses(count=80), {}))["evaluation"] == numbers
    assert maps(numbered(roles(evaluation=VOC), ModelClasses(count=5), {}))["evaluation"] is None
    every = numbered(
        {"evaluation": RoleClasses(tuple(sorted(numbering._COCO_NAMES)))}, ModelClasses(count=80), {}
    )
    assert every.roles["evaluation"].classes == numbering._COCO_NAMES
    assert "sorted by name" in every.orders
    digits = roles(evaluation=" ".join(map(str, range(9))))
    assert maps(numbered(digits, ModelClasses(count=80), {}))["evaluation"] is None
    with pytest.raises(InputError, match=r"'aeroplane'.* is none of the 80 classes of COCO"):
        numbered(roles(evaluation=f"aeroplane {VOC}"), ModelClasses(count=80), {})


def test_a_first_category_without_annotations_is_none_where_the_model_has_one_class_less():
    exported = {"evaluation": RoleClasses(("objects", "cat", "dog"), (0, 1, 2), frozenset({"objects"}))}
    found = numbered(exported, ModelClasses(count=2), {})
    assert maps(found)["evaluation"] == {"cat": 0, "dog": 1}
    assert found.roles["evaluation"].classes == ("cat", "dog")
    assert "'objects'" in found.notes[0]
    as_it_is = numbered(exported, ModelClasses(count=3), {})
    assert maps(as_it_is)["evaluation"] is None


def test_folders_without_a_file_are_classes_where_the_model_has_as_many():
    own = {"evaluation": RoleClasses(("ant", "elk", "fox"), (), frozenset({"elk"}))}
    assert maps(numbered(own, ModelClasses(count=3), {}))["evaluation"] is None
    assert "no sample of the class elk" in numbered(own, ModelClasses(count=3), {}).notes[0]
    found = numbered(own, ModelClasses(count=2), {})
    assert maps(found)["evaluation"] == {"ant": 0, "fox": 1}
    assert found.roles["evaluation"].classes == ("ant", "fox")


def test_counts_that_differ_are_said_and_a_number_beyond_them_is_refused():
    found = numbered(roles(evaluation="ant bee"), ModelClasses(count=3), {})
    assert "the model has 3 classes, and all roles 2" in found.doubts[0]
    with pytest.raises(InputError, match="'fox' of the training data is number 2, and the model has 2"):
        numbered(roles(training="ant bee fox", evaluation="ant fox"), ModelClasses(count=2), {})


def test_category_ids_stay_as_they_are_where_the_model_counts_by_them():
    said = {"evaluation": LabelSettings(numbering="ids")}
    own = {"evaluation": RoleClasses(("person", "stop"), (1, 13))}
    assert numbered(own, ModelClasses(), said).roles == said


def test_other_orders_are_named_for_what_the_answers_may_say():
    orders = numbered(
        roles(training="1 2 10", evaluation="1 2 10"),
        ModelClasses(("10", "1", "2"), 3, "class_names"),
        {},
    ).orders
    assert orders == {
        "sorted by name": (1, 0, 2),
        "sorted by name with numbers by their size": (2, 0, 1),
        "that of the training data": (2, 0, 1),
    }
    assert numbered(roles(evaluation="1 10 2"), ModelClasses(), {}).orders == {
        "sorted by name with numbers by their size": (0, 2, 1)
    }


def test_what_labels_speak_of_and_no_data_have_is_named():
    said = dict.fromkeys(
        ("training", "evaluation"), LabelSettings(map={"cat": 1, "dgo": 0}, ignore=(7, 1))
    )
    found = numbered(roles(training="cat dog", evaluation="cat dog"), ModelClasses(count=2), said)
    own = [note for note in found.notes if note.startswith("labels.")]
    assert own == [
        "labels.map has 'dgo', which no data have: did you mean 'dog'?",
        "labels.ignore has '7', which no data have: one of: 0, 1, cat, dog",
    ]


@pytest.mark.slow
def test_the_names_of_coco_are_those_of_torchvision():
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights

    categories = FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    assert (
        tuple(name for name in categories if name not in ("__background__", "N/A"))
        == numbering._COCO_NAMES
    )


def test_the_order_of_coco_is_one_of_them_for_its_80_names():
    names = numbering._COCO_NAMES
    as_they_are = {"evaluation": RoleClasses(names)}
    assert "COCO's own" not in numbered(as_they_are, ModelClasses(count=80), {}).orders
    by_name = {"evaluation": RoleClasses(tuple(sorted(names)), numbered=True)}
    orders = numbered(by_name, ModelClasses(count=80), {}).orders
    assert orders["COCO's own"] == tuple(map(names.index, sorted(names)))
