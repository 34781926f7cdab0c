"""`hsstore import`: the store that files go into, opened or created, and then the files.

A new store is one that a server can go on with: it says of its model what that server announces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from extraction.announced import announced_by, announced_for
from extraction.dataset import load_dataset, tokenizer_hash
from extraction.options import DataOptions
from extraction.staging import is_there
from hsstore.create import LayoutOptions, create_store
from hsstore.errors import InputError, RefusedError
from hsstore.export.record import norm_hash
from hsstore.importing import dataset_of, import_files, open_source, probe
from hsstore.stage import stage_for
from hsstore.store import Store

if TYPE_CHECKING:
    from extraction.announced import Announced
    from hsstore.dataset import TokenizedDataset
    from hsstore.importing import Probe, Source
    from hsstore.location import Location
    from hsstore.report import Import
    from hsstore.spec import FinalState, Model
    from hsstore.tasks import Bars

ARROW_STATE = "state.json"
"""In a directory of `datasets.save_to_disk`, which speculators' states lie in."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a user asked for."""

    source: Location
    store: Location
    trainer: str
    """The format."""
    layers: tuple[int, ...] | None
    final: FinalState | None
    """Of the files."""
    apply_norm: bool
    data: DataOptions
    model: Path | None
    """Its directory."""
    spool: Path | None
    """Of the running server that a new store is for."""
    engine: Literal["embedded", "sglang"]
    """Without one: which kind of server a new store is for."""
    compute_dtype: str | None
    sizes: LayoutOptions
    workers: int
    take_over: bool


def run_import(options: ImportOptions, bars: Bars) -> Import:
    """Take files into a store, which is created if it is not there.

    Raises
    ------
    HsstoreError
        As `open_source`, `probe`, `create_store` and `import_files`.
    """
    with stage_for(options.source) as files, stage_for(options.store) as stage:
        source = open_source(
            options.source, options.trainer, options.layers, options.final, stage=files
        )
        store, created = _open_store(options, source, stage)
        return import_files(
            source,
            store,
            created=created,
            apply_norm=options.apply_norm,
            workers=options.workers,
            take_over=options.take_over,
            stage=stage,
            bars=bars,
        )


def _open_store(options: ImportOptions, source: Source, stage: Path | None) -> tuple[Store, bool]:
    """Open the store, or create it, which is said."""
    held = probe(source)
    if not is_there(options.store):
        return _create(options, source, held, stage), True
    store = Store.open(options.store)
    if options.data.files:
        store.spec.refuse_other_dataset(_load(options, options.data).fingerprint())
    _refuse_other_model(store.spec.model, source, held, apply_norm=options.apply_norm)
    return store, False


def _create(options: ImportOptions, source: Source, held: Probe, stage: Path | None) -> Store:
    announced = _announced(options, source, held)
    _refuse_other_model(announced.model, source, held, apply_norm=options.apply_norm)
    tokenizer = _tokenizer_dir(options) if options.data.files else None
    return create_store(
        options.store,
        _dataset(options, source),
        announced.model,
        norm_weight=announced.norm_weight,
        tokenizer_hash=tokenizer_hash(tokenizer) if tokenizer else None,
        options=options.sizes,
        stage=stage,
    )


def _announced(options: ImportOptions, source: Source, held: Probe) -> Announced:
    """Return what the server that is to go on says of itself."""
    if options.spool is not None:
        return announced_by(options.spool)
    if options.model is None:
        raise InputError(
            f"{options.store} does not exist: to create it give --model DIR, or --server URL of a running server"
        )
    announced = announced_for(
        options.model,
        layers=source.layers,
        final="post-norm" if options.apply_norm else held.final,
        dtype=held.dtype,
        compute_dtype=options.compute_dtype or _compute_dtype(options.engine, held),
    )
    return _as_exported(source, announced)


def _as_exported(source: Source, announced: Announced) -> Announced:
    """Take the capture hash from an export of the same states: the server that made them is known.

    Raises
    ------
    RefusedError
        They are another model's, by its final norm.
    """
    if source.record is None:
        return announced
    exported = source.record.model
    same = {"id": exported.id, "capture_hash": exported.capture_hash}
    if announced.model.model_copy(update=same) != exported:
        return announced
    if norm_hash(announced.norm_weight, exported) != source.record.norm_hash:
        raise RefusedError(
            f"{source.root} was exported from states of {exported.id}, whose final norm has another weight than "
            f"{announced.model.id}'s: give --model the model that made the states"
        )
    return replace(announced, model=exported)


def _compute_dtype(engine: str, held: Probe) -> str:
    """Return what `hsstore serve` would compute in, on this machine."""
    if engine == "sglang":
        return held.dtype
    from extraction.engines.transformers_model import (  # noqa: PLC0415  # loads torch
        fastest_compute_dtype,
    )

    return fastest_compute_dtype(held.dtype)


def _dataset(options: ImportOptions, source: Source) -> TokenizedDataset:
    if options.data.files:
        return _load(options, options.data)
    root = source.root
    if (
        source.form.name == "speculators"
        and isinstance(root, Path)  # under a URL the files' own tokens are taken
        and (root / ARROW_STATE).exists()
    ):
        # All of it: whoever made the files has chosen already.
        return _load(options, DataOptions(files=(root,), min_loss_tokens=0))
    return dataset_of(source)


def _load(options: ImportOptions, data: DataOptions) -> TokenizedDataset:
    dataset, _ = load_dataset(data.files, _tokenizer_dir(options), data)
    return dataset


def _tokenizer_dir(options: ImportOptions) -> Path | None:
    """Return where the tokenizer is; data that are tokenised already need none."""
    model = options.model
    return model if model and (model / "tokenizer_config.json").exists() else None


def _refuse_other_model(model: Model, source: Source, held: Probe, *, apply_norm: bool) -> None:
    """Refuse files whose states do not belong into a store of a model.

    Raises
    ------
    RefusedError
    """
    if source.layers != model.layers:
        counted = tuple(layer - 1 for layer in source.layers) == model.layers
        hint = "; they look like inputs of layers, which are counted one higher" if counted else ""
        raise RefusedError(
            f"the store has layers {list(model.layers)}, the files {list(source.layers)}: --layers counts "
            f"outputs of 0-based decoder layers{hint}"
        )
    for name, mine, theirs in (
        ("width", model.hidden, held.hidden),
        ("dtype", model.dtype, held.dtype),
    ):
        if mine != theirs:
            raise RefusedError(
                f"{name} of the states is {theirs!r} in the files and {mine!r} in the store"
            )
    if held.final == model.final:
        return
    if (held.final, model.final) != ("pre-norm", "post-norm"):
        raise RefusedError(
            f"the files hold the {held.final} state, the store the {model.final} one, which cannot be made of it"
        )
    if not apply_norm:
        raise RefusedError(
            "the files hold the final state before the norm, the store the one after it: --apply-norm "
            "converts, and may differ from the server's in the last bits"
        )
