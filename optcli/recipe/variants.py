"""Variants: what each extends, its passes with their options, its runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from optcli import passes, runners
from optcli.errors import did_you_mean, excerpt
from optcli.files import registry
from optcli.files.digest import of_value
from optcli.recipe.extending import merge_runner
from optcli.recipe.models import PassUse, RunnerUse, Variant, VariantSettings
from optcli.recipe.names import TAKEN, name_problem
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.rebasing import Rebasing
from optcli.recipe.validation import allowed_keys, checked, shown_value
from optcli.settings import user_code
from optcli.settings.references import CODE

# Each of a row is merged with all before it; people write two or three.
_MOST_EXTENDED = 50
_MOST_PASSES = 100
# Different passes of the user's own; the code of each is read.
_MOST_OWN = 100
_KEYS = tuple(Variant.model_fields)


class VariantReader:
    """Reads variants; every pass and runner that is written once is checked, and blamed, once."""

    def __init__(self, plugins: Mapping[str, str], rebasing: Rebasing, problems: Problems) -> None:
        self._plugins, self._rebasing, self._problems = plugins, rebasing, problems
        self._uses: dict[int, tuple[Node, PassUse | None]] = {}
        self._places: dict[str, list[str]] = {}
        self._own: dict[str, tuple[str, str] | None] = {}

    def read(self, nodes: Mapping[str, Node]) -> dict[str, Variant | None]:
        """Every variant by name; None where something in it is wrong."""
        self._names(nodes)
        sound = {name: node for name, node in nodes.items() if self._shaped(node)}
        return {
            name: self._variant(_Resolving(nodes, sound, self._problems).node(name))
            if name in sound
            else None
            for name in nodes
        }

    def _names(self, nodes: Mapping[str, Node]) -> None:
        seen: dict[str, str] = {}
        for name, node in nodes.items():
            if (wrong := name_problem(name, taken=TAKEN)) is not None:
                self._problems.add(
                    node.start, f"the variant name {shown_value(name)}: {wrong[0]}", wrong[1]
                )
            elif name.lower() in seen:
                other = seen[name.lower()]
                message = f"the variants {other!r} and {name!r} differ in capitals only"
                self._problems.add(node.start, message, "some file systems mix them up: rename one")
            seen.setdefault(name.lower(), name)

    def _shaped(self, node: Node) -> bool:
        """Whether a variant is a mapping with known keys and a list of passes; else it is noted."""
        add = self._problems.add
        if not isinstance(node.value, dict):
            hint = f"write [{excerpt(str(node.value))}]"
            if node.value is None:
                hint = "write [] for a variant without passes"
            add(node.place, f"found {shown_value(node.value)}, wanted a list of passes", hint)
            return False
        for key, item in node.items():
            if key not in _KEYS:
                add(item.start, f"unknown key {shown_value(key)} in a variant", self._belongs(key))
        listed = node.get("passes")
        if listed is not None and not isinstance(listed.value, tuple):
            is_mapping = isinstance(listed.value, dict)
            names = ", ".join(listed.value) if is_mapping else str(listed.value or "")
            message = f"passes: found {shown_value(listed.value)}, wanted a list of passes"
            add(listed.place, message, f"write passes: [{excerpt(names)}]")
            return False
        return True

    def _belongs(self, key: str) -> str:
        if key in self._known():
            return f"a pass stands in a list: write passes: [{key}]"
        if key in runners.Runner.model_fields:
            return f"did you mean runner: {{{key}: ...}}?"
        return did_you_mean(key, _KEYS)

    def _known(self) -> tuple[str, ...]:
        return (*passes.names(), *self._plugins)

    def _variant(self, node: Node) -> Variant | None:
        plain = node.without(*(key for key in node.value if key not in VariantSettings.model_fields))
        settings = checked(VariantSettings, plain, self._problems)
        listed = node.get("passes")
        if listed is not None and len(listed.elements()) > _MOST_PASSES:
            message = f"found {len(listed.elements())} passes, wanted at most {_MOST_PASSES}"
            self._problems.add(listed.start, message, "name fewer", kind="many")
            return None
        uses = [self._use(item) for item in (listed.elements() if listed is not None else ())]
        written = node.get("runner")
        runner = None if written is None else self._runner(written)
        if settings is None or None in uses or (written is not None and runner is None):
            return None
        whole = tuple(use for use in uses if use is not None)
        return Variant(**settings.model_dump(), passes=whole, runner=runner)

    def _use(self, item: Node) -> PassUse | None:
        if id(item) not in self._uses:
            self._uses[id(item)] = (item, self._pass(item))
        return self._uses[id(item)][1]

    def _pass(self, item: Node) -> PassUse | None:
        add = self._problems.add
        if not isinstance(item.value, dict) or not item.value:
            message = f"found {shown_value(item.value)}, wanted a pass"
            add(item.place, message, "write a name, or {NAME: {OPTION: VALUE}}")
            return None
        if len(item.value) > 1:
            name, *others = item.value
            keys = excerpt(", ".join(item.value))
            message = f"found {len(item.value)} keys ({keys}), wanted one pass"
            if item.value[name].value in (None, {}):
                hint = f"indent its options further: {{{name}: {{{others[0]}: ...}}}}"
            else:
                hint = "begin each pass with a dash of its own"
            add(item.value[others[0]].start, message, hint)
            return None
        ((name, options),) = item.value.items()
        if not isinstance(options.value, dict):
            message = (
                f"{excerpt(name)}: found {shown_value(options.value)}, wanted a mapping of options"
            )
            add(options.place, message, f"write {{{excerpt(name)}: {{OPTION: VALUE}}}}")
            return None
        return self._named(name, options, item)

    def _named(self, name: str, options: Node, item: Node) -> PassUse | None:
        kind = None
        if ":" in name:
            name = self._rebasing.text(name, CODE, item.place)
        elif name not in self._plugins and name in registry.names(passes.__name__):
            kind = passes.find(name)
            options = self._rebasing.node(options, kind)
        use = PassUse(name=name, options=options.plain(), place=self._place(item, name, options))
        if kind is not None:
            configured = self._options(kind, name, options)
            return None if configured is None else use.model_copy(update={"configured": configured})
        if ":" in name:
            wrong = self._wrong_code(name)
            if wrong is not None:
                self._problems.add(item.place, *wrong)
                return None
            return use.model_copy(update={"reference": name})
        if name in self._plugins:
            return use.model_copy(update={"reference": self._plugins[name]})
        offered = registry.entry_points("optcli.passes").get(name)
        if offered is not None:
            return use.model_copy(update={"reference": offered})
        self._problems.add(
            item.place, f"unknown pass {shown_value(name)}", did_you_mean(name, self._known())
        )
        return None

    def _wrong_code(self, reference: str) -> tuple[str, str] | None:
        """What is wrong with a reference to a pass of the user's own; each is looked at once."""
        if reference not in self._own:
            if len(self._own) >= _MOST_OWN:
                return f"more than {_MOST_OWN} different passes of your own", "name fewer"
            self._own[reference] = user_code.problem(reference, self._rebasing.folder)
        return self._own[reference]

    def _place(self, item: Node, name: str, options: Node) -> str:
        """Where the pass stands, numbered where a matrix or `--set` puts several at one place."""
        place, content = str(item.place), of_value([name, options.plain()])
        contents = self._places.setdefault(place, [])
        if content not in contents:
            contents.append(content)
        number = contents.index(content)
        return f"{place} #{number + 1}" if number else place

    def _options(self, kind: type[passes.Pass], name: str, options: Node) -> passes.Pass | None:
        """The configured pass; an option of another pass is called that."""
        allowed = allowed_keys(kind)
        for key in (key for key in options.value if key not in allowed):
            others = (other for other in registry.names(passes.__name__) if other != name)
            owners = [other for other in others if key in passes.find(other).model_fields]
            if owners and "did you mean" not in did_you_mean(key, allowed):
                message = f"unknown key {key!r} in {name}"
                own = ", ".join(allowed) or "none"
                hint = f"it is an option of {' and '.join(owners)}; {name} has {own}"
                self._problems.add(options.value[key].start, message, hint)
        return checked(kind, options, self._problems, name)

    def _runner(self, node: Node) -> RunnerUse | None:
        add = self._problems.add
        if not isinstance(node.value, dict):
            add(
                node.place,
                f"runner: found {shown_value(node.value)}, wanted a name or a mapping",
                _A_RUNNER,
            )
            return None
        name = node.get("name")
        if name is None:
            hint = f"add name: one of {', '.join(runners.names())}"
            add(node.start, "missing key 'name' in runner", hint)
            return None
        if name.value not in runners.names():
            hint = did_you_mean(str(name.value), runners.names())
            add(name.place, f"unknown runner {shown_value(name.value)}", hint)
            return None
        kind = runners.find(name.value)
        settings = self._rebasing.node(node.without("name"), kind)
        configured = checked(kind, settings, self._problems, "runner")
        if configured is None:
            return None
        return RunnerUse(name=name.value, configured=configured, place=str(node.start))


_A_RUNNER = "write runner: openvino, or runner: {name: openvino, threads: 2}"


@dataclass(frozen=True)
class _Resolving:
    """One variant merged with what it extends."""

    nodes: Mapping[str, Node]
    sound: Mapping[str, Node]
    problems: Problems

    def node(self, name: str, below: tuple[str, ...] = ()) -> Node:
        own = self.nodes[name]
        extends = own.get("extends")
        if extends is None or not isinstance(extends.value, str):
            return own
        parent = extends.value
        if parent not in self.nodes:
            hint = did_you_mean(parent, [other for other in self.nodes if other != name])
            self.problems.add(extends.place, f"extends an unknown variant {shown_value(parent)}", hint)
            return own
        if parent in (*below, name):
            circle = excerpt(" -> ".join((*below, name, parent)), 300)
            message = f"variants extend each other in a circle: {circle}"
            self._note((*below, name), message, "break the circle")
            return own
        if parent not in self.sound:
            return own
        if len(below) >= _MOST_EXTENDED:
            message = f"more than {_MOST_EXTENDED} variants extend each other in a row"
            self._note((*below, name), message, "extend fewer")
            return own
        return _stacked(self.node(parent, (*below, name)), own)

    def _note(self, names: tuple[str, ...], message: str, hint: str) -> None:
        """Note what is wrong with a row of variants at the last, unless one of the row is blamed."""
        places = [self.nodes[name].value["extends"].place for name in names]
        if not any(map(self.problems.at, places)):
            self.problems.add(places[-1], message, hint)


def _stacked(parent: Node, own: Node) -> Node:
    """`own` on top of its parent: passes are appended, the runner merged, the rest replaced.

    null removes what the parent has.
    """
    removed = [key for key, node in own.items() if node.value is None and key in parent.value]
    own = own.without(*removed)
    merged = replace(own, value={**parent.without(*removed).value, **own.value})
    changes = {}
    before, after = parent.get("passes"), own.get("passes")
    if before is not None and after is not None:
        changes["passes"] = replace(after, value=(*before.elements(), *after.elements()))
    old, new = parent.get("runner"), own.get("runner")
    if old is not None and new is not None:
        changes["runner"] = merge_runner(old, new)
    return merged.with_items(changes)
