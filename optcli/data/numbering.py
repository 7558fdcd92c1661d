"""One numbering of labels for all roles, by the names of the classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from optcli.errors import InputError, counted, did_you_mean, excerpt, plural
from optcli.settings.labels import LabelSettings

_SHOWN = 5
# In the order of their ids, as detectors number them: torchvision has the same list.
_COCO_LIST = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, "
    "fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, "
    "bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, "
    "sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, "
    "bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, "
    "broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, "
    "dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, "
    "toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush"
)
_COCO_NAMES = tuple(_COCO_LIST.split(", "))


@dataclass(frozen=True)
class RoleClasses:
    """The classes of one role: names by label, the source's own numbers, and those without a sample.

    `numbered`: the data number their classes themselves.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...] = ()
    empty: frozenset[str] = frozenset()
    numbered: bool = False


@dataclass(frozen=True)
class ModelClasses:
    """The classes of the model: names by number where `source` says them, and how many there are.

    `synsets` are what ImageNet calls the same classes.
    """

    names: tuple[str, ...] | None = None
    count: int | None = None
    source: str = ""
    synsets: tuple[str, ...] | None = None

    def find(self, name: str) -> int | None:
        """The number of a class: by its name, but for case, spaces and hyphens, or by its number."""
        for names in (self.names, self.synsets):
            for same in (str, _plain):
                there = [number for number, each in enumerate(names or ()) if same(each) == same(name)]
                if len(there) == 1:
                    return there[0]
        if self.names and name.isdecimal() and len(name) < 10 and int(name) < len(self.names):
            return int(name)
        return None


@dataclass(frozen=True)
class Numbering:
    """The labels of each role as settings, None where its own are right.

    `notes` say what was made of the classes, `doubts` what does not go together. `orders` are others in
    which the classes may be numbered: by a name, the number of each class of `evaluation` there.
    """

    roles: Mapping[str, LabelSettings | None]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def numbered(
    roles: Mapping[str, RoleClasses], model: ModelClasses, settings: Mapping[str, LabelSettings]
) -> Numbering:
    """Number the classes of each role as the model does.

    `settings` is what the recipe says of a role's labels. The order is the model's where its names are
    known, else training's, else that of all roles together. Raises `InputError` where it cannot be
    known, or where a class with samples is none of the model's.
    """
    return _Numbered(dict(roles), model, settings).result()


@dataclass
class _Numbered:
    roles: dict[str, RoleClasses]
    model: ModelClasses
    declared: Mapping[str, LabelSettings]
    sources: dict[str, RoleClasses] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def result(self) -> Numbering:
        self.sources = dict(self.roles)
        for role in self.roles:
            self._leave_out_dummy(role)
            self._leave_out_empty(role)
        by_ids = {role for role, own in self.declared.items() if own.numbering == "ids"}
        settings: dict[str, LabelSettings | None] = {role: self.declared[role] for role in by_ids}
        counted = {role: of for role, of in self.roles.items() if role not in by_ids}
        model = self._named(counted) if counted else self.model
        for role, of in counted.items():
            is_read = role != "calibration" or all(model.find(name) is not None for name in of.names)
            settings[role] = self._settings(role, of, model) if is_read else self.declared.get(role)
        self._say_unknown_keys()
        self._say_differences(counted, model)
        own = "evaluation" in counted and "evaluation" not in self.declared
        orders = self._orders(model.names or ()) if own else {}
        return Numbering(settings, tuple(self.notes), tuple(self.doubts), orders)

    def _orders(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Likely orders that are not the one of these names."""
        training = self.roles.get("training")
        coco = _COCO_NAMES
        others: dict[str, Sequence[str]] = {
            "sorted by name": sorted(names),
            "sorted by name with numbers by their size": sorted(names, key=_by_number),
            "that of the training data": [] if training is None else list(training.names),
            "COCO's own": coco if len(coco) in (len(names), self.model.count) else (),
        }
        return {
            order: tuple(map(other.index, names))
            for order, other in others.items()
            if tuple(other) != names
            and ({*other} == {*names} or (other is coco and {*names} < {*coco}))
            and len({*names}) == len(names)
        }

    def _leave_out_dummy(self, role: str) -> None:
        """Leave out a first category that stands for none, as Roboflow's export has it.

        It is one where no annotation uses it, and the model has one class less.
        """
        of = self.roles[role]
        if role in self.declared or self.model.names is not None or not of.ids:
            return
        if self.model.count != len(of.names) - 1 or of.empty != {of.names[0]}:
            return
        self.notes.append(
            f"the {role} data have {len(of.names)} categories, and the model"
            f" {counted(self.model.count, 'class', 'classes')}: the first category, {of.names[0]!r},"
            " has no annotation and is taken for none"
        )
        self.declared = {**self.declared, role: LabelSettings(ignore=(of.names[0],), offset=-1)}

    def _leave_out_empty(self, role: str) -> None:
        """Leave out folders without a file where the model has as many classes as the others are."""
        of = self.roles[role]
        if of.ids or not of.empty or self.model.count != len(of.names) - len(of.empty):
            return
        self.notes.append(f"no class of the model: folders without a file, {_listed(sorted(of.empty))}")
        self.roles[role] = RoleClasses(tuple(name for name in of.names if name not in of.empty))

    def _named(self, roles: Mapping[str, RoleClasses]) -> ModelClasses:
        """The model's classes with the names by which labels are numbered."""
        model = self.model
        if model.names is None and self._are_of_coco(roles):
            self.notes.append(
                f"the model does not name its {self.model.count} classes, and those of the data are"
                " COCO's: they are numbered as in COCO (class_names: [...] says another order)"
            )
            return replace(model, names=_COCO_NAMES, source="COCO")
        related = any(own.map for own in self.declared.values()) or any(
            model.find(name) is not None for of in roles.values() for name in of.names
        )
        if related and (model.names or model.synsets):
            source = model.source if model.names else "ImageNet"
            return replace(model, names=model.names or model.synsets, source=source)
        if model.names is not None:
            self._take_in_turn(roles, model.names)
        names, source = _of_roles(roles)
        return ModelClasses(names, model.count, source)

    def _are_of_coco(self, roles: Mapping[str, RoleClasses]) -> bool:
        """Whether the classes of data that say no order, or of fewer than the model has, are COCO's.

        Half of them are enough where the model has more: it then is refused that others are not.
        """
        if self.model.count != len(_COCO_NAMES) or any(
            own.map or own.offset for own in self.declared.values()
        ):
            return False
        judged = {role: of for role, of in roles.items() if role != "calibration"} or roles
        names = list(dict.fromkeys(name for of in judged.values() for name in of.names))
        ordered = any(of.numbered or list(of.names) != sorted(of.names) for of in judged.values())
        if ordered and len(names) == len(_COCO_NAMES):
            return False
        coco = ModelClasses(_COCO_NAMES)
        known = sum(not name.isdecimal() and coco.find(name) is not None for name in names)
        return known == len(names) or (len(names) < self.model.count and 2 * known >= len(names))

    def _take_in_turn(self, roles: Mapping[str, RoleClasses], names: Sequence[str]) -> None:
        """Names of which none agrees stand for each other, where they are as many. Raises."""
        for role, of in roles.items():
            if len(of.names) != len(names):
                raise InputError(
                    f"none of the {len(of.names)} classes of the {role} data ({_listed(of.names)})"
                    f" is one of the {len(names)} that {self.model.source} names ({_listed(names)})",
                    place=f"data.{role}",
                    hint="labels: {map: {CLASS: NUMBER}} says which class is which",
                )
        own = next(iter(roles.values())).names
        self.notes.append(
            f"the data call the classes {_listed(own)}, and {self.model.source} {_listed(names)}: they"
            " are taken to be the same, in this order"
        )

    def _settings(self, role: str, of: RoleClasses, model: ModelClasses) -> LabelSettings | None:
        """What a role's data are opened with; None where its own numbers are the model's."""
        own = self.declared.get(role, LabelSettings())
        assert model.names is not None
        source = self.sources[role].names
        same = of.names == model.names == source and own == LabelSettings()
        numbers = (
            (name, label if same else self._number(role, label, of, own, model))
            for label, name in enumerate(of.names)
        )
        table = {name: number for name, number in numbers if number is not None}
        beyond = next((name for name, number in table.items() if self._is_beyond(number)), None)
        if beyond is not None and beyond not in of.empty:
            raise InputError(
                f"the class {excerpt(beyond)!r} of the {role} data is number {table[beyond]}, and the"
                f" model has {counted(self.model.count or 0, 'class', 'classes')}, from 0",
                place=f"data.{role}",
                hint="labels: {offset: N}, {map: {CLASS: NUMBER}} or {ignore: [CLASS]} says what it is",
            )
        if same:
            return None
        before = [f"class {number}" for number in range(own.offset)]
        classes = (*before, *model.names[max(0, -own.offset) :])
        ignore = tuple(name for name in source if name not in table)
        return LabelSettings(map=table, ignore=ignore, classes=classes or None)

    def _is_beyond(self, number: int) -> bool:
        return number < 0 or (self.model.count is not None and number >= self.model.count)

    def _number(
        self, role: str, label: int, of: RoleClasses, own: LabelSettings, model: ModelClasses
    ) -> int | None:
        """The model's number of a class; None where it does not count, or has no sample."""
        assert not isinstance(own.map, str)
        name = of.names[label]
        keys = (name, str(of.ids[label] if of.ids else label))
        if {str(each) for each in own.ignore}.intersection(keys):
            return None
        value = next((own.map[key] for key in keys if key in own.map), None)
        if isinstance(value, int):
            return value
        number = model.find(name if value is None else value)
        if number is not None:
            return number if value is not None else number + own.offset
        if value is None and name in of.empty:
            return None
        what, place = (name, f"data.{role}") if value is None else (value, "labels.map")
        names = model.names or ()
        mend = did_you_mean(what, names)
        raise InputError(
            f"{excerpt(what)!r}, a class of the {role} data, is none of the {len(names)} classes of"
            f" {model.source} ({_listed(names)})",
            place=place,
            hint=f"{mend + '; ' if mend else ''}labels: {{map: {{{name}: NUMBER}}}} says which it is,"
            f" {{ignore: [{name}]}} leaves it out",
        )

    def _say_unknown_keys(self) -> None:
        """Note what `labels` speaks of and no data have: it may be misspelt."""
        known: set[str] = set()
        for of in self.sources.values():
            known.update(of.names, map(str, of.ids or range(len(of.names))))
        settings = [own for role, own in self.declared.items() if role in self.sources]
        for key in ("map", "ignore"):
            named = dict.fromkeys(str(each) for own in settings for each in getattr(own, key))
            for name in [each for each in named if each not in known][:_SHOWN]:
                mend = did_you_mean(name, sorted(known))
                ending = f": {mend}" if mend else ""
                self.notes.append(f"labels.{key} has {excerpt(name)!r}, which no data have{ending}")

    def _say_differences(self, roles: Mapping[str, RoleClasses], model: ModelClasses) -> None:
        """Note classes that a role lacks or has no sample of, and counts that differ."""
        everything = list(dict.fromkeys(name for of in roles.values() for name in of.names))
        for role, of in roles.items():
            missing = [name for name in everything if name not in of.names]
            if missing:
                self.notes.append(
                    f"the {role} data lack {_classes(missing)}, which other roles have: labels are"
                    f" numbered by the names of {model.source}"
                )
            elif of.empty and not of.numbered:  # of annotations most subsets lack some
                self.notes.append(f"the {role} data have no sample of {_classes(sorted(of.empty))}")
            if model.names is not None and _order(of.names) != _order(of.names, model.names):
                self.notes.append(
                    f"the {role} data list the classes in another order than {model.source}: labels are"
                    " numbered by their names"
                )
        count, names = self.model.count, model.names
        offsets = {self.declared[role].offset for role in roles if role in self.declared}
        if count is not None and names and not any(count == len(names) + n for n in (offsets or {0})):
            self.doubts.append(
                f"the model has {counted(count, 'class', 'classes')}, and {model.source} {len(names)}:"
                " which number is which class is taken from the order of the names"
            )


def _of_roles(roles: Mapping[str, RoleClasses]) -> tuple[tuple[str, ...], str]:
    """The classes in training's order or in one that all roles share, and whose. Raises."""
    judged = {*roles["evaluation"].names} if "evaluation" in roles else set()
    by_role = {
        role: of.names
        for role, of in roles.items()
        # Images that calibrate may be of other classes than those that judge.
        if role != "calibration"
        or 2 * len(judged.intersection(of.names)) > min(len(judged), len(of.names))
    }
    by_role = by_role or {role: of.names for role, of in roles.items()}
    everything = {name for names in by_role.values() for name in names}
    training = by_role.get("training")
    if training is not None and everything == {*training}:
        return training, "the training data"
    if all(list(names) == sorted(names) for names in by_role.values()):
        return tuple(sorted(everything)), "all roles"
    for role, names in by_role.items():
        if everything == {*names} and all(
            _order(other) == _order(other, names) for other in by_role.values()
        ):
            return names, f"the {role} data"
    one, other = next(
        (one, other) for one in by_role for other in by_role if by_role[one] != by_role[other]
    )
    raise InputError(
        f"the order of the classes is not known: the {one} data have {_listed(by_role[one])}, and the"
        f" {other} data {_listed(by_role[other])}",
        place="data",
        hint="class_names: [...] lists the classes in the model's order",
    )


def _order(names: Sequence[str], order: Sequence[str] | None = None) -> list[str]:
    """The names in their order, or in that of others, which they are all in or not counted."""
    if order is None:
        return list(names)
    places = {name: place for place, name in enumerate(order)}
    if not places.keys() >= {*names}:
        return list(names)
    return sorted(names, key=places.__getitem__)


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """What sorts 2 before 10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in parts]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def _classes(names: Sequence[str]) -> str:
    return f"the {plural(len(names), 'class', 'classes')} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(excerpt(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
