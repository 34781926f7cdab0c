"""What a trainer has to be told of an exported directory, in its own words, and what is worth knowing.

No file of these formats says which layers its states are of, and trainers count them in two ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hsstore.export.beside import VOCABULARY_FILES
from hsstore.export.target import has_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hsstore.export.target import Target
    from hsstore.location import Location
    from hsstore.spec import FinalState, Model


@dataclass(frozen=True, slots=True)
class Told:
    """What the settings follow from."""

    directory: Location
    trainer: str
    model: Model
    final: FinalState
    target: Target | None
    draft_vocabulary: int | None
    splits: int
    """Splits that the samples are of."""
    norm_error: float | None

    @property
    def outputs(self) -> list[int]:
        """Layers as most trainers count them: outputs of 0-based decoder layers."""
        return list(self.model.layers)

    @property
    def inputs(self) -> list[int]:
        """Layers as speculators and vLLM count them: inputs of decoder layers."""
        return [layer + 1 for layer in self.model.layers]

    @property
    def vocabulary_file(self) -> Location | None:
        """The file with the draft vocabulary, if there is one."""
        name = VOCABULARY_FILES.get(self.trainer)
        return self.directory / name if name and self.draft_vocabulary else None


def settings(told: Told) -> tuple[str, ...]:
    """Return lines for the trainer's configuration or command line."""
    return tuple(_SETTINGS[told.trainer](told))


def _specforge(told: Told) -> Iterator[str]:
    yield "model:"
    if (target := told.target) is not None:
        path = target.path if has_index(target.path) else told.directory / "target"
        yield f"  target_model_path: {path}"
        if target.head is not None:
            yield f"  lm_head_key: {target.head}"
    yield f"  torch_dtype: {told.model.dtype}"
    yield f"  aux_hidden_state_layer_ids: {told.outputs}"
    if told.vocabulary_file:
        yield f"  vocab_mapping_path: {told.vocabulary_file}"
    yield "data:"
    yield f"  hidden_states_path: {told.directory}"


def _speculators(told: Told) -> Iterator[str]:
    yield f"--data-path {told.directory}"
    yield f"--target-layer-ids {' '.join(map(str, told.inputs))}"
    yield "--on-missing raise"
    if told.draft_vocabulary:
        yield f"--draft-vocab-size {told.draft_vocabulary}"


def _modelopt(told: Told) -> Iterator[str]:
    yield f"eagle_aux_hidden_state_layer_ids={told.outputs}"
    if told.draft_vocabulary:
        yield f"draft_vocab_size={told.draft_vocabulary}"
        yield f"load_draft_vocab_cache(model, {str(told.vocabulary_file)!r})"
    files = str(told.directory / "samples/*.pt")
    yield f"OfflineSupervisedDataset(sorted(glob({files!r})), answer_only_loss=True)"


def _torchspec(told: Told) -> Iterator[str]:
    yield f"offline dataset: {told.directory}"
    yield f"aux hidden state layers: {told.outputs} (outputs of 0-based layers)"
    if told.vocabulary_file:
        yield f"vocabulary mapping: {told.vocabulary_file}"


def _eagle(told: Told) -> Iterator[str]:
    yield f"--tmpdir {told.directory}"


_SETTINGS: dict[str, Callable[[Told], Iterator[str]]] = {
    "specforge": _specforge,
    "speculators": _speculators,
    "modelopt": _modelopt,
    "torchspec": _torchspec,
    "eagle": _eagle,
}


def notes(told: Told) -> Iterator[str]:
    """Yield what a user may not expect."""
    converted = told.final != told.model.final
    if converted and told.final == "pre-norm":
        yield (
            "the store has the final state after the norm, and these files want it before: it was divided by "
            f"the norm's weight; normalised again it differs by {told.norm_error or 0:.2%} at most (2-norm of a row)"
        )
    elif converted:
        yield "the final norm was applied to the final state; a server's own may differ in the last bits"
    if told.splits > 1 and told.trainer != "torchspec":
        yield f"samples of {told.splits} splits are together: --split takes one"
    if told.trainer == "specforge":
        yield from _specforge_notes(told)
    if told.trainer == "modelopt":
        yield "without answer_only_loss=True every token is supervised, whatever the files say"
    if told.trainer == "eagle":
        yield "the captured layers are left out, and the final state is rounded to float16"


def _specforge_notes(told: Told) -> Iterator[str]:
    if len(told.outputs) != 3:
        yield f"SpecForge's EAGLE-3 takes three captured layers; these files have {len(told.outputs)}"
    if told.target is None:
        yield (
            "the target's folder must have a *.index.json, and tied models need lm_head_key: "
            "--model DIR sees to both"
        )
