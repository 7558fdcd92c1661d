"""What a build would do, without doing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.errors import OptcliError, counted
from optcli.pipeline.admission import ArtifactAdmission
from optcli.pipeline.making import planned
from optcli.pipeline.plan import BuildPlan, Step
from optcli.results.document import Code, Document, Items, Part, Section, table_of_texts
from optcli.store import Entry, Store
from optcli.store import explain as store_explain

# A store that was never made.
_NOTHING = Store(Path("/nonexistent"))


def preview(
    recipe: Path,
    *,
    store: Path | Store | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    explain: bool = False,
    trust: bool = False,
    remote_only: bool = False,
    tell: Callable[[str, str], None] = lambda step, message: None,
) -> tuple[Document, dict[str, Any]]:
    """What a build would do, without doing it: a document, and the same as plain data.

    With `explain`, each step that must run comes with the ingredient that differs from the nearest
    result in the store, or in the remote store where one is named. `trust` is that of the build.
    `remote_only` answers for a machine whose own store is empty. `tell` hears what is worth knowing of
    labels, and what goes wrong with the remote store.
    """
    store = Store.of(store)
    plan = planned(recipe, store, overrides, only, remember=False)
    for remark in plan.recipe.data_remarks:
        tell("labels", remark.text)
    with store.connected(tell, uploading=False):
        look = _Look(plan, store, trust, remote_only)
        return _document(look, explain=explain)


def _document(look: _Look, *, explain: bool) -> tuple[Document, dict[str, Any]]:
    plan, store = look.plan, look.store
    current = {step.key: step.ingredients for v in plan.variants for step in v.steps}
    current |= plan.data_roles
    compared: list[Entry] | None = None
    sections: list[Section] = []
    record: dict[str, Any] = {"recipe": plan.recipe.name, "variants": {}}
    states: dict[str, str] = {}
    for variant in plan.variants:
        rows, reasons, steps = [], list[str](), []
        for step in variant.steps:
            state, refused = look.at(step)
            rows.append((step.key[:12], state, step.name, step.format.value))
            steps.append({"name": step.name, "key": step.key, "cached": state == "cached"})
            if store.remote is not None:
                steps[-1]["remote"] = state == "remote"
            if explain and state == "to do" and step.key not in states:
                if compared is None:
                    compared = look.compared()
                others = [entry for entry in compared if entry.key != step.key]
                ours = _NOTHING if look.remote_only else store
                why = [*store_explain(step.ingredients, ours, "artifact", current, others).lines()]
                steps[-1]["why"] = [refused] if refused else why
                reasons += [f"{step.name}: {refused}"] if refused else why
            states[step.key] = state
        lacks = [f"skipped: {one.what} ({one.hint})" for one in variant.missing]
        unmeasurable = [one for one in variant.unmeasurable if one not in variant.missing]
        lacks += [f"not measured: {one.what} ({one.hint})" for one in unmeasurable]
        table = table_of_texts(("key", "state", "step", "format"), rows, range(4))
        parts: list[Part] = [table, Code("\n".join(reasons)), Items(lacks)]
        sections.append(Section(f"{variant.name} (runs in {variant.runner_name})", parts))
        missing = [one.what for one in variant.missing]
        record["variants"][variant.name] = {"steps": steps, "missing": missing}
    counts = [f"{count} {state}" for state, count in Counter(states.values()).items()]
    answer = f"{counted(len(states), 'step')}: {', '.join(counts)}"
    return Document(f"Steps of {plan.recipe.name}", sections, answer=answer), record


@dataclass(frozen=True)
class _Look:
    """Where the results of steps are found. Each step is asked for once."""

    plan: BuildPlan
    store: Store
    trust: bool
    remote_only: bool
    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def at(self, step: Step) -> tuple[str, str]:
        """`cached`, `remote` or `to do`, and why what is there is not taken."""
        if step.key not in self.known:
            self.known[step.key] = self._state(step)
        return self.known[step.key]

    def _state(self, step: Step) -> tuple[str, str]:
        if not self.remote_only and self.store.sound("artifact", step.key) is not None:
            return "cached", ""
        there = self.store.remote.look("artifact", step.key) if self.store.remote else None
        if there is None:
            return "to do", ""
        try:
            ArtifactAdmission.of(step, self.plan, trust=self.trust).of_record(there)
        except OptcliError as error:
            return "to do", f"the remote store has it: {error.message} ({error.hint})"
        return "remote", ""

    def compared(self) -> list[Entry]:
        """What the remote store has to compare with."""
        remote = self.store.remote
        return [] if remote is None else list(remote.described_all(("artifact", "samples")))
